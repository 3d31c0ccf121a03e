package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"
)

// Resolver turns a name into a stream of updates about its endpoints.
//
// Resolve itself does nothing and holds nothing: a stream begins when the sequence
// is ranged over, with what is so by then. It goes on until ctx ends or the
// consumer breaks; then, at once, it releases all it held. An error is news, not
// the end: what was known stays in force, and the resolver goes on trying. The one
// exception is an error that matches [ErrUnresolvable], which is the last item. The
// first answer after an error is an update even if it changes nothing, for it says
// that the error is over.
//
// A Resolver is safe for concurrent use; each call of Resolve is its own
// stream.
type Resolver interface {
	Resolve(ctx context.Context, target string) iter.Seq2[Update, error]
}

// requireResolvers panics if a resolver is nil: every wrapper needs one.
func requireResolvers(rs ...Resolver) {
	for _, r := range rs {
		if r == nil {
			panic("resolve: nil resolver")
		}
	}
}

// Func is a function as a Resolver.
type Func func(ctx context.Context, target string) iter.Seq2[Update, error]

// Resolve calls f.
func (f Func) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return f(ctx, target)
}

// ErrUnresolvable says that a resolver will never answer for a target: it is
// not a name that this resolver knows how to resolve.
var ErrUnresolvable = errors.New("not a name that this resolver resolves")

// Kind is what an Update does.
type Kind uint8

// The kinds of Update. Updates may be redundant or out of order: adding what
// is there, removing what is not and emptying what is empty change nothing.
const (
	Replace      Kind = iota + 1 // Endpoints are all there is; forget the others
	Add                          // Endpoints were added or changed
	Remove                       // Removed are gone
	Empty                        // the target exists and has no endpoint
	DoesNotExist                 // there is no such target
)

// Update is one piece of news about a target's endpoints.
type Update struct {
	Kind      Kind
	Endpoints []Endpoint       // Replace, Add
	Removed   []netip.AddrPort // Remove
}

// Endpoint is one place where a target is served.
type Endpoint struct {
	ID
	Weight uint32            // share of the load; 10 000 is one unit, 0 means not said
	Labels map[string]string // for metrics and tap ("pod", "zone"); not to be changed
}

// ID is what makes an endpoint the same endpoint: its address, and whatever
// changes how one connects to it. It is comparable. As long as an ID stays,
// the endpoint's connections and statistics stay.
type ID struct {
	Addr       netip.AddrPort
	Protocol   Protocol // what the endpoint is known to speak
	ServerName string   // TLS server name; "" means cleartext
	Identity   string   // TLS identity expected of the peer (DNS-like name or URI)
	Authority  string   // authority to send instead of the request's; "" means none
	OpaquePort uint16   // port that takes opaque transport; 0 means none

	// PingInterval and PingTimeout are the keep-alive of HTTP/2 connections. A PING
	// is sent after an interval in which nothing was received, and a connection is
	// closed if the answer takes longer than the timeout. 0 means no PING.
	PingInterval time.Duration
	PingTimeout  time.Duration
}

// Protocol is a hint of what an endpoint speaks.
type Protocol uint8

// The protocol hints.
const (
	Unknown Protocol = iota // nothing is known
	H2                      // HTTP/2
	Opaque                  // not to be parsed
)

// String returns "replace", "add", "remove", "empty" or "does not exist".
func (k Kind) String() string {
	switch k {
	case Replace:
		return "replace"
	case Add:
		return "add"
	case Remove:
		return "remove"
	case Empty:
		return "empty"
	case DoesNotExist:
		return "does not exist"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// String returns "pending", "exists", "empty" or "does not exist".
func (s State) String() string {
	switch s {
	case StatePending:
		return "pending"
	case StateExists:
		return "exists"
	case StateEmpty:
		return "empty"
	case StateDoesNotExist:
		return "does not exist"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns what String does, so that a State is a word in JSON too.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns "unknown", "h2" or "opaque".
func (p Protocol) String() string {
	switch p {
	case Unknown:
		return "unknown"
	case H2:
		return "h2"
	case Opaque:
		return "opaque"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// MarshalText returns what String does, so that a Protocol is a word in JSON
// and YAML files.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText wrote, and "" as Unknown. Anything else
// is an error that names it.
func (p *Protocol) UnmarshalText(text []byte) error {
	switch string(text) {
	case "", "unknown":
		*p = Unknown
	case "h2":
		*p = H2
	case "opaque":
		*p = Opaque
	default:
		return fmt.Errorf("resolve: protocol %q is not unknown, h2 or opaque", text)
	}
	return nil
}
