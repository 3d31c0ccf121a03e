package tap

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// condition is a compiled match. Which fields are used depends on op.
type condition struct {
	op     op
	subs   []condition         // of all, any and not
	key    string              // of a label, or the name of a header field
	text   string              // the value to compare with
	starts bool                // text is compared with the beginning of the value
	mask   func(string) string // returns the visible part of the value; nil: all of it
	prefix netip.Prefix        // network of an address; if invalid, lo and hi are used
	lo, hi uint16              // range of ports, both included
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

// view has the values of a request or connection that conditions read.
type view struct {
	common Event        // addresses and labels
	init   RequestInit  // of a request
	header layer.Header // of a request; nil for a connection
}

// requestInit returns a copy of v.init. It copies the texts into one string, because
// they may refer to a long request line, which the events would keep in memory.
func (v *view) requestInit() *RequestInit {
	all := v.init.Method + v.init.Scheme + v.init.Authority + v.init.Path
	next := func(s string) string {
		s, all = all[:len(s)], all[len(s):]
		return s
	}
	return &RequestInit{
		Method: next(v.init.Method), Scheme: next(v.init.Scheme), Authority: next(v.init.Authority), Path: next(v.init.Path),
	}
}

// holds reports whether the request or connection matches c. Conditions on HTTP do not
// match connections.
func (c *condition) holds(v *view) bool {
	if c.op >= opScheme && v.header == nil {
		return false
	}
	switch c.op {
	case opAll, opAny:
		for i := range c.subs {
			if c.subs[i].holds(v) == (c.op == opAny) {
				return c.op == opAny
			}
		}
		return c.op == opAll
	case opNot:
		return !c.subs[0].holds(v)
	case opSource:
		return c.address(v.common.Source)
	case opDestination:
		return c.address(v.common.Destination)
	case opDestinationLabel:
		// A missing label does not match, because c.text is not empty.
		return v.common.DestinationLabels[c.key] == c.text
	case opRouteLabel:
		return v.common.RouteLabels[c.key] == c.text
	case opScheme:
		return strings.EqualFold(cmp.Or(v.init.Scheme, "http"), c.text)
	case opMethod:
		return c.string(v.init.Method)
	case opAuthority:
		return v.init.Authority != "" && c.string(v.init.Authority)
	case opPath:
		return c.string(v.init.Path)
	case opHeader, opHeaderPresent:
		return c.field(v.header)
	}
	return false
}

// address reports whether a is in the network or the range of ports. An unknown address
// does not match.
func (c *condition) address(a netip.AddrPort) bool {
	if !a.IsValid() {
		return false
	}
	if c.prefix.IsValid() {
		return c.prefix.Contains(a.Addr())
	}
	return c.lo <= a.Port() && a.Port() <= c.hi
}

func (c *condition) string(s string) bool {
	if c.starts {
		return strings.HasPrefix(s, c.text)
	}
	return s == c.text
}

// field reports whether the visible part of one of the fields called c.key matches.
func (c *condition) field(fields layer.Header) bool {
	if v, ok := fields.(interface{ Values(name string) []string }); ok { // does not allocate
		return slices.ContainsFunc(v.Values(c.key), c.value)
	}
	for name, value := range fields.All() {
		if strings.EqualFold(name, c.key) && c.value(value) {
			return true
		}
	}
	return false
}

// value reports whether value matches after its hidden part has been removed.
func (c *condition) value(value string) bool {
	if c.op == opHeaderPresent {
		return true
	}
	if c.mask != nil {
		value = c.mask(value)
	}
	return c.string(value)
}
