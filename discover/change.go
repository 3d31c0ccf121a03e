package discover

import (
	"context"
	"errors"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Why a target has no endpoint. A balancer's refusals match one of them where
// it applies, so that callers may fall back to something else.
var (
	// ErrNoEndpoints says that the target exists and has no endpoint. Do not
	// fall back: it is served by nothing now and may be served again.
	ErrNoEndpoints = errors.New("the target has no endpoints")

	// ErrDoesNotExist says that there is no such target. A caller may look
	// for it elsewhere.
	ErrDoesNotExist = errors.New("the target does not exist")
)

// Target is what an endpoint's service is made for.
type Target struct {
	Name     string           // what was resolved ("web.default:80")
	Endpoint resolve.Endpoint // labels and weight are as of now; they may change later
}

// MakeService makes the service of one endpoint. Like every [layer.MakeService] it must
// return at once; what has to wait, waits in Ready. One that does not return
// within 10 ms holds up neither removals nor the other services of its update. An
// endpoint for which it returns nil, or panics, has a Service that is closed from
// the start; its error holds the value of the panic.
//
// The services of one update are made one after the other, in the order of
// their addresses, unless one takes too long; those of several updates may be
// made at the same time. For an endpoint that has gone meanwhile, none is made.
//
// What a resolver says of how to reach the endpoint (Protocol, ServerName,
// Identity, Authority, OpaquePort) is for MakeService to act on: nobody else does. One
// that looks at the address alone sends in clear what should go by TLS. Refuse
// what you cannot do: see the example.
//
// ctx ends when the endpoint is gone and the last response of it has ended, or
// when the context given to [Endpoints] ends. It is the life of the service:
// release its connections then.
type MakeService[Req, Rsp any] func(ctx context.Context, t Target) layer.Service[Req, Rsp]

// Endpoint is one endpoint with its service. It is never changed; a [Change]
// brings a new one with the same Service.
type Endpoint[Req, Rsp any] struct {
	resolve.Endpoint
	Target  string
	Service layer.Service[Req, Rsp]
}

// Change is what is new about a target's endpoints, and what is known of it.
// An ID is in at most one of the three lists; an address may be in Added and in
// Removed, when one endpoint takes the place of another.
type Change[Req, Rsp any] struct {
	Added   []*Endpoint[Req, Rsp]
	Changed []*Endpoint[Req, Rsp] // the same ID and Service, other labels or weight
	Removed []*Endpoint[Req, Rsp] // to get nothing more

	// Reset says that the resolver said all there is, and not what is new, in the
	// update that this Change tells of.
	Reset bool

	State resolve.State
	Err   error // the last error of the resolver, nil again after its next good message
}

func (c *Change[Req, Rsp]) lists() int { return len(c.Added) + len(c.Changed) + len(c.Removed) }
