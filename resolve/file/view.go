package file

import (
	"slices"

	"github.com/gotower/gotower/resolve"
)

// view is what one stream has said of its target.
type view struct {
	target    string
	said      *content // where the last update is from; nil before the first
	endpoints []resolve.Endpoint
	exists    bool
	told      *content // the last error is from there; nil if it was said to be over
}

// next returns what the stream has to say in s. An update comes before an
// error: what is known serves whoever comes while the file is bad.
func (v *view) next(s *state) (u resolve.Update, news bool, err error) {
	recovered := v.told != nil && s.Latest.Err == nil
	if s.Good != nil && v.changed(s.Good) || recovered {
		if recovered {
			v.told = nil
		}
		return v.update(), true, nil
	}
	if s.Latest.Err != nil && s.Latest != v.told {
		v.told = s.Latest
		return resolve.Update{}, true, located(s.Latest.Err)
	}
	return resolve.Update{}, false, nil
}

// changed takes over what c says, and reports whether that is something new.
func (v *view) changed(c *content) bool {
	if c == v.said {
		return false
	}
	endpoints, exists := c.Value[v.target]
	same := v.said != nil && exists == v.exists && slices.EqualFunc(endpoints, v.endpoints, resolve.Endpoint.Equal)
	v.said, v.endpoints, v.exists = c, endpoints, exists
	return !same
}

// update says the whole of what is known. The slice is the consumer's.
func (v *view) update() resolve.Update {
	switch {
	case !v.exists:
		return resolve.Update{Kind: resolve.DoesNotExist}
	case len(v.endpoints) == 0:
		return resolve.Update{Kind: resolve.Empty}
	}
	return resolve.Update{Kind: resolve.Replace, Endpoints: slices.Clone(v.endpoints)}
}
