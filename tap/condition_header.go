package tap

import (
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// named are fields that keep the values of a name together, see [layer.Header].
type named interface{ Values(name string) []string }

// present reports whether fields have one called c.key.
func (c *condition) present(fields layer.Header) bool {
	if f, ok := fields.(named); ok {
		return len(f.Values(c.key)) > 0
	}
	return anyField(fields, c.key, func(string) bool { return true })
}

// field reports whether one of the fields called c.key has the value.
func (c *condition) field(fields layer.Header) bool {
	if f, ok := fields.(named); ok {
		return slices.ContainsFunc(f.Values(c.key), c.value)
	}
	return anyField(fields, c.key, c.value)
}

// value reports whether what may be known of the value of a field is as c says.
func (c *condition) value(s string) bool {
	if c.mask != nil {
		s = c.mask(s)
	}
	return c.string(s)
}

// anyField is apart because a walk over fields allocates even where it is not
// taken.
func anyField(fields layer.Header, name string, is func(value string) bool) bool {
	for n, v := range fields.All() {
		if strings.EqualFold(n, name) && is(v) {
			return true
		}
	}
	return false
}
