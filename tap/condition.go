package tap

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// condition is a compiled match. It is a tagged struct and not an interface,
// so that [holds] can be generic over the request and needs no allocation.
type condition struct {
	op     op
	subs   []condition         // of all, any and not
	key    string              // of a label, or the name of a header field
	text   string              // the value to compare with
	starts bool                // it is enough if the value starts with text
	mask   func(string) string // what of the value may be known; nil is all
	prefix netip.Prefix        // of an address, or else
	lo, hi uint16              // its ports, both included
}

type op uint8

const (
	opAll op = iota
	opAny
	opNot
	opSource
	opDestination
	opDestinationLabel
	opRouteLabel
	opScheme
	opMethod
	opAuthority
	opPath
	opHeader
	opHeaderPresent
)

// holds reports whether a request meets c, reading from left to right and no
// further than the answer.
func holds[Req, Rsp any](c *condition, v *view[Req, Rsp]) bool {
	switch c.op {
	case opAll:
		for i := range c.subs {
			if !holds(&c.subs[i], v) {
				return false
			}
		}
		return true
	case opAny:
		for i := range c.subs {
			if holds(&c.subs[i], v) {
				return true
			}
		}
		return false
	case opNot:
		return !holds(&c.subs[0], v)
	default:
		return holdsItself(c, v)
	}
}

// holdsItself is for conditions that look at the request.
func holdsItself[Req, Rsp any](c *condition, v *view[Req, Rsp]) bool {
	switch c.op {
	case opSource:
		return c.address(v.source())
	case opDestination:
		return c.address(v.destination())
	case opDestinationLabel:
		// Keys and values are never empty, so a missing label does not match.
		return v.place.destinationLabels[c.key] == c.text
	case opRouteLabel:
		return v.route()[c.key] == c.text
	case opScheme:
		return c.scheme(v.scheme())
	case opMethod:
		return c.string(v.method())
	case opAuthority:
		a := v.authority()
		return a != "" && c.string(a)
	case opPath:
		return c.string(v.path())
	case opHeader:
		return c.field(v.access.RequestHeader(v.req))
	case opHeaderPresent:
		return c.present(v.access.RequestHeader(v.req))
	default:
		return false
	}
}

// address is false for an unknown address, whatever is asked of it.
func (c *condition) address(a netip.AddrPort) bool {
	if !a.IsValid() {
		return false
	}
	if c.prefix.IsValid() {
		return c.prefix.Contains(a.Addr())
	}
	return c.lo <= a.Port() && a.Port() <= c.hi
}

func (c *condition) scheme(s string) bool {
	if s == "" {
		s = "http"
	}
	return strings.EqualFold(s, c.text)
}

func (c *condition) string(s string) bool {
	if c.starts {
		return strings.HasPrefix(s, c.text)
	}
	return s == c.text
}

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

// value reports whether the visible value of a field matches c.
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
