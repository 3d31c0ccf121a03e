package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"
)

// Resolver resolves a name to a stream of updates about its endpoints. It is safe for
// concurrent use. Each call of Resolve is a separate stream.
//
// A stream starts with the current state when the sequence is ranged over. It ends when
// ctx ends or the consumer breaks, and then releases all resources.
//
// An error does not change the endpoints and does not end the stream, unless it matches
// [ErrUnresolvable], which is the last item. The first answer after an error is yielded
// even if nothing has changed, because it ends the error.
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

// Kind determines how an Update changes the endpoints of a target.
type Kind uint8

// The kinds of Update. Updates may be redundant or out of order. Adding an existing
// endpoint or removing a missing one has no effect.
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
}

// ID is the identity of an endpoint: its address, and all parameters of its connections. An
// ID is comparable. As long as the ID stays the same, the connections and statistics of the
// endpoint are kept.
type ID struct {
	Addr       netip.AddrPort
	Protocol   Protocol // the protocol of the endpoint, if known
	ServerName string   // the TLS server name; "" means cleartext
	Identity   string   // the expected TLS identity of the endpoint (DNS-like name or URI)
	Authority  string   // the authority to send instead of the request's; "" means the request's
	OpaquePort uint16   // port that accepts linkerd's opaque transport; 0 means none

	// PingInterval and PingTimeout configure the keep-alive of HTTP/2 connections. A PING
	// is sent when nothing was received for PingInterval. The connection is closed if the
	// answer takes longer than PingTimeout. A PingInterval of 0 means no PING.
	PingInterval time.Duration
	PingTimeout  time.Duration
}

// Protocol says which protocol an endpoint supports, as far as the source of the endpoint knows.
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

// MarshalText returns the result of String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns "unknown", "h2" or "opaque".
func (p Protocol) String() string { return nameOf(p, "protocol", "unknown", "h2", "opaque") }

// MarshalText returns the result of String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the result of MarshalText. "" means Unknown.
func (p *Protocol) UnmarshalText(text []byte) error {
	for known := Unknown; known <= Opaque; known++ {
		if len(text) == 0 || string(text) == known.String() {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("resolve: protocol %q is not unknown, h2 or opaque", text)
}
