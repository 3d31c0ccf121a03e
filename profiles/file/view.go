package file

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/gotower/gotower/profiles"
)

// view is what one stream has yielded of its target.
type view struct {
	target    string
	host      string
	port      uint16
	namespace string

	seen    *state            // of which profile has been yielded, or was the same
	profile *profiles.Profile // the last one yielded; nil before the first
	named   bool              // profile is from a file, not the default one
	err     string            // the last error yielded; empty after its end was yielded
}

// next returns the next item of st to yield, or nil and nil. The profile comes
// before the error, because it serves while a file has mistakes.
func (v *view) next(st *state) (*profiles.Profile, error) {
	now := st.set.profile(v.host, v.port, v.namespace)
	err := st.err
	if now == nil && v.named {
		err = errors.Join(err, v.removed(st.set.Targets()))
	}
	if st != v.seen {
		v.seen = st
		if v.update(now, st.whole, err == nil) {
			return v.profile, nil
		}
	}
	if err != nil && err.Error() == v.err {
		err = nil
	}
	if err != nil {
		v.err = err.Error()
	}
	return nil, err
}

// update reports whether now, which is nil if no file has the target, is to be
// yielded, and sets the profile to it. After the end of an error the same profile
// is yielded again.
func (v *view) update(now *profiles.Profile, complete, healthy bool) bool {
	switch {
	case now != nil:
		v.named = true
	case !complete || v.named:
		return false // a file that has not been read may have it, or it was removed
	default:
		now = &profiles.Profile{}
	}
	recovered := v.err != "" && healthy
	if v.profile != nil && reflect.DeepEqual(now, v.profile) && !recovered {
		return false
	}
	v.profile = now
	if recovered {
		v.err = ""
	}
	return true
}

// removed is the error for a target that the files had and no longer have.
func (v *view) removed(found []string) error {
	const most = 10
	list := strings.Join(found[:min(len(found), most)], ", ")
	switch more := len(found) - most; {
	case len(found) == 0:
		list = "none"
	case more > 0:
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("file: the profile of target %q was removed; its last profile stays active; targets found: %s", v.target, list)
}
