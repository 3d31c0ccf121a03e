package file

import (
	"reflect"

	"github.com/gotower/gotower/profiles"
)

// view is what one stream has said of its target.
type view struct {
	host      string
	port      uint16
	namespace string

	seen *state            // whose profile was said, or was nothing new
	said *profiles.Profile // the last one; nil before the first
	told string            // the last error; empty if it was said to be over
}

// next returns what the stream has to say of st, one thing at a time, or nothing.
// The profile comes before the error: it serves while a file is bad.
func (v *view) next(st *state) (*profiles.Profile, error) {
	if st != v.seen {
		v.seen = st
		if p := v.profile(st); p != nil {
			return p, nil
		}
	}
	return nil, v.news(st)
}

// profile returns what is to be said, or nil if that is nothing new. After an
// error that is over, the same profile is news.
func (v *view) profile(st *state) *profiles.Profile {
	p := st.set.profile(v.host, v.port, v.namespace)
	if p == nil && !st.whole {
		return nil // what is not known yet may have one
	}
	if p == nil {
		p = &profiles.Profile{}
	}
	recovered := v.told != "" && st.err == nil
	if v.said != nil && reflect.DeepEqual(p, v.said) && !recovered {
		return nil
	}
	v.said = p
	if recovered {
		v.told = ""
	}
	return p
}

// news returns the error of st if it was not told yet.
func (v *view) news(st *state) error {
	if st.err == nil || st.err.Error() == v.told {
		return nil
	}
	v.told = st.err.Error()
	return st.err
}
