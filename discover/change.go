package discover

import (
	"context"
	"errors"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// The errors of a balancer that rejects a request because its target has no endpoints.
var (
	// ErrNoEndpoints reports that the target exists but has no endpoints now. A caller
	// should not use another target, because this one may have endpoints again.
	ErrNoEndpoints = errors.New("the target has no endpoints")

	// ErrDoesNotExist reports that the target does not exist. A caller may resolve the name
	// in another way.
	ErrDoesNotExist = errors.New("the target does not exist")
)

// Target is the argument of a [MakeService]: an endpoint and the target to which it belongs.
type Target struct {
	Name     string           // the target that was resolved, for example "web.default:80"
	Endpoint resolve.Endpoint // the labels and weight are those at the time of the call
}

// MakeService returns the service of one endpoint. It must not block, because it delays all
// changes of its target. Ready of the service may wait. If MakeService returns nil or panics, the
// endpoint rejects requests with an error that matches [layer.ErrClosed].
//
// The services of one update are made in the order of their addresses.
//
// MakeService must use the Protocol, ServerName, Identity, Authority and OpaquePort of the
// [resolve.ID] of t. A function that reads only the address would send cleartext to an endpoint
// that requires TLS. For an ID that the function does not support, it should return a service that
// rejects requests: see the example.
//
// ctx ends when the endpoint was removed and its last response has ended, or when the
// context of [Endpoints] ends. The service should then close its connections.
type MakeService[Req, Rsp any] func(ctx context.Context, t Target) layer.Service[Req, Rsp]

// Endpoint is one endpoint with its service. It is immutable. If the labels or the weight of
// the endpoint change, a [Change] has a new Endpoint with the same Service.
type Endpoint[Req, Rsp any] struct {
	resolve.Endpoint
	Target  string
	Service layer.Service[Req, Rsp]
}

// Change is the difference between two sets of endpoints of a target. An ID is in at most one of
// Added, Changed and Removed. If the ID at an address changed, the address is in both Added and
// Removed.
type Change[Req, Rsp any] struct {
	Added   []*Endpoint[Req, Rsp] // new endpoints
	Changed []*Endpoint[Req, Rsp] // same ID and Service, other labels or weight
	Removed []*Endpoint[Req, Rsp] // must not get new requests

	Reset bool          // whether the update listed all endpoints, not only changes
	State resolve.State // the state of the target after the change
	Err   error         // the last error of the resolver; nil after its next update
}

func (c *Change[Req, Rsp]) len() int { return len(c.Added) + len(c.Changed) + len(c.Removed) }

// Option configures [Endpoints].
type Option[Rsp any] func(*options[Rsp])

type options[Rsp any] struct {
	complete layer.Completion[Rsp]
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
	option.Apply(&o, opts)
	if o.complete == nil {
		o.complete = layer.AtEnd[Rsp]()
	}
	return o
}

// WithCompletion sets the function that determines when a response ends. After an endpoint was
// removed, the context of its service ends when the last response of the endpoint has ended. The
// default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.complete = c }
}
