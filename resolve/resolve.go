package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/gotower/gotower/internal/authority"
)

// Resolver resolves a name to a stream of updates about its endpoints. It is safe for concurrent
// use. Each call of Resolve is a separate stream.
//
// A stream starts with the current state when you range over the sequence. It ends when ctx ends
// or the consumer breaks, and then releases all resources.
//
// An error does not change the endpoints and does not end the stream, unless it matches
// [ErrUnresolvable], which is the last item. The first answer after an error is yielded even if
// nothing has changed, because it ends the error.
type Resolver interface {
	Resolve(ctx context.Context, target string) iter.Seq2[Update, error]
}

// requireResolvers panics if one of the resolvers rs is nil.
func requireResolvers(rs ...Resolver) {
	for _, r := range rs {
		if r == nil {
			panic("resolve: nil resolver")
		}
	}
}

// Func adapts a function to a Resolver.
type Func func(ctx context.Context, target string) iter.Seq2[Update, error]

// Resolve calls f.
func (f Func) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return f(ctx, target)
}

// ErrUnresolvable reports that a resolver can never resolve a target, because it does not
// support names of this form.
var ErrUnresolvable = errors.New("not a name that this resolver resolves")

// Kind determines how an Update changes a target's endpoints.
type Kind uint8

// These are the kinds of Update. Updates may be redundant or out of order: adding an existing
// endpoint or removing a missing one does nothing.
const (
	Replace      Kind = iota + 1 // Endpoints is the whole set
	Add                          // the endpoints in Endpoints were added or changed
	Remove                       // the endpoints at the addresses in Removed were removed
	Empty                        // the target exists and has no endpoints
	DoesNotExist                 // the target does not exist
)

// Update is one change of a target's endpoints.
type Update struct {
	Kind      Kind
	Endpoints []Endpoint       // used for Replace and Add
	Removed   []netip.AddrPort // used for Remove
}

// Endpoint is one address that serves a target.
type Endpoint struct {
	ID
	Weight uint32            // share of the load; 10 000 is one unit, and 0 means unset
	Labels map[string]string // for metrics and tap ("pod", "zone"); must not be modified

	// Priority is 0 for the endpoints that are used first. Those with a higher number are used if
	// too few of the lower ones are healthy.
	Priority uint32

	// Locality names the place where the endpoint is, usually its zone; "" means unknown. If
	// LocalityWeight is not 0, a priority's requests are divided among the localities in
	// proportion to their weights. It should be the same for all endpoints in a locality.
	Locality       string
	LocalityWeight uint32
}

// ID is an endpoint's identity: its address, and everything that determines how to connect to it.
// An ID is comparable. As long as it stays the same, the endpoint keeps its connections and
// statistics.
type ID struct {
	Addr       netip.AddrPort
	Protocol   Protocol // the protocol of the endpoint, if known
	ServerName string   // the TLS server name; "" means cleartext
	Identity   string   // the expected TLS identity of the endpoint (DNS-like name or URI)
	Authority  string   // the authority to send instead of the request's; "" means the request's
	OpaquePort uint16   // port that accepts linkerd's opaque transport; 0 means none

	// PingInterval and PingTimeout configure keep-alive on HTTP/2 connections. A PING is sent
	// when nothing was received for PingInterval. The connection is closed if the answer takes
	// longer than PingTimeout. A PingInterval of 0 means no PING. Without PingWhileIdle, a
	// connection with no requests in flight sends no PING.
	PingInterval  time.Duration
	PingTimeout   time.Duration
	PingWhileIdle bool
}

// Validate returns an error if no connection to e is possible: if e lacks an address or port, has
// a TLS server name without an identity or the reverse, or an invalid authority or protocol.
func (e Endpoint) Validate() error {
	switch {
	case !e.Addr.IsValid() || e.Addr.Port() == 0:
		return fmt.Errorf("endpoint %v: want an IP address and a port", e.Addr)
	case e.Protocol > Opaque:
		return fmt.Errorf("endpoint %v: unknown %v", e.Addr, e.Protocol)
	// TLS without an identity would not be verified, and an identity without TLS cannot be.
	case (e.ServerName == "") != (e.Identity == ""):
		return fmt.Errorf("endpoint %v: a TLS server name needs an identity, and the reverse", e.Addr)
	case e.Authority != "" && !authority.Valid(e.Authority):
		return fmt.Errorf("endpoint %v: authority %q is not a host with an optional port", e.Addr, e.Authority)
	}
	return nil
}

// Protocol says which protocol an endpoint supports, as far as the endpoint's source knows.
type Protocol uint8

// The protocol hints.
const (
	Unknown Protocol = iota // not known
	H2                      // HTTP/2
	Opaque                  // a protocol that must not be parsed
)

// nameOf returns the element of names at the index v. If that element is missing or empty, it
// returns kind and the number v, for example "protocol 7".
func nameOf[T ~uint8](v T, kind string, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s %d", kind, uint8(v))
}

// String returns "replace", "add", "remove", "empty" or "does not exist".
func (k Kind) String() string {
	return nameOf(k, "kind", "", "replace", "add", "remove", "empty", "does not exist")
}

// String returns "pending", "exists", "empty" or "does not exist".
func (s State) String() string {
	return nameOf(s, "state", "pending", "exists", "empty", "does not exist")
}

// MarshalText implements [encoding.TextMarshaler], so that JSON contains the text of String instead of a
// number.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns "unknown", "h2" or "opaque".
func (p Protocol) String() string { return nameOf(p, "protocol", "unknown", "h2", "opaque") }

// MarshalText implements [encoding.TextMarshaler], so that JSON contains the text of String instead of a
// number.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the result of MarshalText. "" means Unknown.
func (p *Protocol) UnmarshalText(text []byte) error {
	for candidate := Unknown; candidate <= Opaque; candidate++ {
		// The zero Protocol is the first candidate, so "" gives Unknown.
		if len(text) == 0 || string(text) == candidate.String() {
			*p = candidate
			return nil
		}
	}
	return fmt.Errorf("resolve: protocol %q is not unknown, h2 or opaque", text)
}
