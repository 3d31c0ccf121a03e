package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"
)

// Resolver turns a name into a stream of updates about its endpoints. It is safe for
// concurrent use; each call of Resolve is a separate stream.
//
// Resolve itself does nothing. A stream begins when the sequence is ranged over, with the
// current state. It ends when ctx ends or the consumer breaks, and then releases
// everything at once.
//
// An error does not end the stream and does not change the endpoints, except an error
// that matches [ErrUnresolvable], which is the last item. The first answer after an error
// is yielded even if it is unchanged, because it ends the error.
type Resolver interface {
	Resolve(ctx context.Context, target string) iter.Seq2[Update, error]
}

// requireResolvers panics if a resolver is nil.
func requireResolvers(rs ...Resolver) {
	for _, r := range rs {
		if r == nil {
			panic("resolve: nil resolver")
		}
	}
}

// Func is a function that is a Resolver.
type Func func(ctx context.Context, target string) iter.Seq2[Update, error]

// Resolve calls f.
func (f Func) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return f(ctx, target)
}

// ErrUnresolvable means that a resolver will never resolve a target, because the form of
// its name is not supported.
var ErrUnresolvable = errors.New("not a name that this resolver resolves")

// Kind is the kind of an Update.
type Kind uint8

// The kinds of Update. Updates may be redundant or out of order: adding an existing
// endpoint or removing a missing one has no effect.
const (
	Replace      Kind = iota + 1 // Endpoints is the whole set
	Add                          // Endpoints were added or changed
	Remove                       // Removed were removed
	Empty                        // the target exists and has no endpoints
	DoesNotExist                 // the target does not exist
)

// Update is one change of a target's endpoints.
type Update struct {
	Kind      Kind
	Endpoints []Endpoint       // Replace, Add
	Removed   []netip.AddrPort // Remove
}

// Endpoint is one address that serves a target.
type Endpoint struct {
	ID
	Weight uint32            // share of the load; 10 000 is one unit, 0 is unset
	Labels map[string]string // for metrics and tap ("pod", "zone"); must not be changed
}

// ID is the identity of an endpoint: its address and everything that changes how to
// connect to it. It is comparable. As long as an ID stays, the endpoint's connections and
// statistics stay.
type ID struct {
	Addr       netip.AddrPort
	Protocol   Protocol // protocol of the endpoint, if known
	ServerName string   // TLS server name; "" means cleartext
	Identity   string   // TLS identity expected of the peer (DNS-like name or URI)
	Authority  string   // authority to send instead of the request's; "" means none
	OpaquePort uint16   // port for opaque transport; 0 means none

	// PingInterval and PingTimeout are the keep-alive of HTTP/2 connections. A PING
	// is sent after an interval in which nothing was received, and a connection is
	// closed if the answer takes longer than the timeout. 0 means no PING.
	PingInterval time.Duration
	PingTimeout  time.Duration
}

// Protocol is a hint at the protocol of an endpoint.
type Protocol uint8

// The protocol hints.
const (
	Unknown Protocol = iota // not known
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

// MarshalText returns the result of String.
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

// MarshalText returns the result of String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the result of MarshalText, and "" as Unknown.
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
