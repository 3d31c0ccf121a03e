package discover

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Reasons why a target has no endpoints. A rejection by a balancer matches the one
// that applies, so that a caller can fall back to another target.
var (
	// ErrNoEndpoints means that the target exists and has no endpoints now. A caller
	// should not fall back, because the target may have endpoints again.
	ErrNoEndpoints = errors.New("the target has no endpoints")

	// ErrDoesNotExist means that the target does not exist. A caller may look for it
	// elsewhere.
	ErrDoesNotExist = errors.New("the target does not exist")
)

// Target is the argument of a [MakeService].
type Target struct {
	Name     string           // the resolved target ("web.default:80")
	Endpoint resolve.Endpoint // with its current labels and weight, which may change later
}

// MakeService returns the service of one endpoint. It must return at once, as every
// [layer.MakeService]: a call that blocks delays all changes of its target. Waiting
// belongs into Ready. If it returns nil or panics, the endpoint gets a closed service.
//
// The services of one update are made in the order of their addresses.
//
// MakeService must act on the ID's Protocol, ServerName, Identity, Authority and
// OpaquePort, because nothing else does. Return a service that rejects requests for
// an ID that is not supported: see the example. A function that reads only the address
// sends cleartext to an endpoint that requires TLS.
//
// ctx is the lifetime of the service. It ends when the endpoint was removed and its
// last response has ended, or with the context of [Endpoints]. The service should
// close its connections then.
type MakeService[Req, Rsp any] func(ctx context.Context, t Target) layer.Service[Req, Rsp]

// Endpoint is one endpoint with its service. It is immutable: a [Change] has a new
// Endpoint with the same Service.
type Endpoint[Req, Rsp any] struct {
	resolve.Endpoint
	Target  string
	Service layer.Service[Req, Rsp]
}

// Change is a difference between two sets of endpoints of a target. An ID is in at
// most one of the lists. An address is in Added and Removed if its ID changed.
type Change[Req, Rsp any] struct {
	Added   []*Endpoint[Req, Rsp]
	Changed []*Endpoint[Req, Rsp] // same ID and Service, other labels or weight
	Removed []*Endpoint[Req, Rsp] // must not get new requests

	Reset bool // the update of the resolver had the whole set
	State resolve.State
	Err   error // last error of the resolver; nil after its next update
}

func (c *Change[Req, Rsp]) len() int { return len(c.Added) + len(c.Changed) + len(c.Removed) }

// Option configures [Endpoints].
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	complete layer.Completion[Rsp]
	handover time.Duration
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := options[Rsp]{handover: 10 * time.Second}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.complete == nil {
		o.complete = layer.AtEnd[Rsp]()
	}
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// WithCompletion sets when a response ends. A removed endpoint keeps its service until
// its last response has ended. The default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithHandoverTimeout sets how long an endpoint may serve after the [resolve.ID] at its
// address changed. The default is 10 s. 0 or a negative value replaces it at once.
//
// The new endpoint takes over when its service is ready or closed, or after the
// timeout. Then one [Change] removes the old endpoint and adds the new one. If the ID
// changes again before that, the timeout starts again with the newest ID. If it
// changes back, the old endpoint stays. A removed address has no handover.
//
// Set 0 if a withdrawn ServerName or Identity must stop at once. Until the handover
// the old service uses, and may open, connections that were verified for the old ID
// or were cleartext. linkerd's proxy does the same without a limit.
func WithHandoverTimeout[Rsp any](d time.Duration) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.handover = d })
}
