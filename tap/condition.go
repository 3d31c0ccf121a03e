package tap

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// condition is a compiled match: a tree of operators. op determines which of the other fields are
// used.
type condition struct {
	op     op
	subs   []condition         // operands of opAll, opAny and opNot
	key    string              // key of a label, or name of a header field
	text   string              // value that is compared
	starts bool                // whether text must be a prefix of the value; otherwise they must be equal
	mask   func(string) string // replaces the secret parts of a value; nil leaves values unchanged
	prefix netip.Prefix        // network of an address; if invalid, lo and hi are used
	lo, hi uint16              // range of ports, both included
	reads  reads               // values that the whole condition compares; set at the root only
}

// reads is a set of groups of request values, such as the header fields, with one bit for each
// group. A group is read into a view when a condition or an event first needs it.
type reads uint8

const (
	readsCommon reads = 1 << iota // addresses and labels
	readsMethod                   // method and path
	readsTarget                   // scheme and authority
	readsHeader
	readsAll = 1<<iota - 1
)

// needs returns which groups of values must be read before c can be evaluated. An operator needs what
// its operands need.
func (c *condition) needs() reads {
	switch {
	case c.op >= opHeader:
		return readsHeader
	case c.op == opScheme, c.op == opAuthority:
		return readsTarget
	case c.op == opMethod, c.op == opPath:
		return readsMethod
	case c.op >= opSource:
		return readsCommon
	}
	// All other operators combine the operands.
	var all reads
	for i := range c.subs {
		all |= c.subs[i].needs()
	}
	return all
}

// op is the operator of a condition. Methods rely on the order: the operators after opNot compare a value,
// opScheme and those after it an HTTP value, and the last two a header field.
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

// view holds the values of one request or connection that conditions compare. Groups of values are read
// into it only when a condition needs them, and then kept for the conditions of other watchers.
type view struct {
	has    reads        // the values that have been read
	common Event        // addresses and labels of the request or connection
	init   RequestInit  // method, scheme, authority and path of a request
	header layer.Header // headers of a request

	isConnection bool // the view is that of a connection, to which conditions on requests do not apply
}

// requestInit returns a copy of v.init with texts of its own. Otherwise an event that waits in a buffer
// would keep the memory of the whole request line.
func (v *view) requestInit() *RequestInit {
	// One allocation holds all four texts, of which next cuts off one at a time.
	all := v.init.Method + v.init.Scheme + v.init.Authority + v.init.Path
	next := func(s string) string {
		s, all = all[:len(s)], all[len(s):]
		return s
	}
	return &RequestInit{
		Method: next(v.init.Method), Scheme: next(v.init.Scheme), Authority: next(v.init.Authority), Path: next(v.init.Path),
	}
}

// holds reports whether the request or connection that v describes matches c. A condition
// on an HTTP value does not match a connection.
func (c *condition) holds(v *view) bool {
	if c.op >= opScheme && v.isConnection {
		return false
	}
	switch c.op {
	case opAll, opAny:
		for i := range c.subs {
			// The first true operand decides opAny, and the first false one opAll.
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
		// An unknown authority matches nothing, not even an empty prefix.
		return v.init.Authority != "" && c.string(v.init.Authority)
	case opPath:
		return c.string(v.init.Path)
	case opHeader, opHeaderPresent:
		return c.field(v.header)
	}
	return false
}

// address reports whether addr matches c. If c specifies a network, the IP address must be in it.
// Otherwise the port must be in c's range of ports. An unknown address does not match.
func (c *condition) address(addr netip.AddrPort) bool {
	if !addr.IsValid() {
		return false
	}
	if c.prefix.IsValid() {
		return c.prefix.Contains(addr.Addr())
	}
	return c.lo <= addr.Port() && addr.Port() <= c.hi
}

// string reports whether s equals c.text, or begins with it if c.starts is set.
func (c *condition) string(s string) bool {
	if c.starts {
		return strings.HasPrefix(s, c.text)
	}
	return s == c.text
}

// field reports whether c matches at least one value of the header field c.key. Values are
// compared after their secret parts have been replaced.
func (c *condition) field(fields layer.Header) bool {
	return slices.ContainsFunc(fields.Values(c.key), c.value)
}

// value reports whether one header value matches c. The value is compared after its secret parts
// have been replaced.
func (c *condition) value(value string) bool {
	if c.op == opHeaderPresent {
		return true
	}
	if c.mask != nil {
		value = c.mask(value)
	}
	return c.string(value)
}
