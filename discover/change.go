package discover

import (
	"context"
	"errors"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// A balancer rejects requests with one of these errors if there are no endpoints for its target.
var (
	// ErrNoEndpoints reports that the target exists but has no endpoints now. You should not
	// switch to another target, because endpoints may come back.
	ErrNoEndpoints = errors.New("the target has no endpoints")

	// ErrDoesNotExist reports that the target does not exist. A caller may resolve the name
	// in another way.
	ErrDoesNotExist = errors.New("the target does not exist")
)

// Target is what a [MakeService] makes a service for: an endpoint, and the target it belongs to.
type Target struct {
	Name     string           // the target that was resolved, for example "web.default:80"
	Endpoint resolve.Endpoint // the labels and weight are those at the time of the call
}

// MakeService returns one endpoint's service. It must not block, because it delays all changes to
// its target. The service's Ready may wait. If MakeService returns nil or panics, the endpoint
// rejects requests with an error that matches [layer.ErrClosed].
//
// If an update adds several endpoints, their services are made in the order of their addresses.
//
// MakeService must use the Protocol, ServerName, Identity, Authority and OpaquePort in t's
// [resolve.ID]. A function that reads only the address would send cleartext to an endpoint that
// requires TLS. For an ID that it does not support, it should return a service that rejects
// requests: see the example.
//
// ctx ends when the endpoint was removed and its last response has ended, or when the context of
// [Endpoints] ends. The service should then close its connections.
type MakeService[Req, Rsp any] func(ctx context.Context, t Target) layer.Service[Req, Rsp]

// Endpoint is one endpoint with its service. It is immutable. If its labels or weight change, a
// [Change] brings a new Endpoint with the same Service.
type Endpoint[Req, Rsp any] struct {
	resolve.Endpoint
	Target  string
	Service layer.Service[Req, Rsp]
}

// Change is the difference between two sets of endpoints for a target. An ID is in at most one of
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

// len returns the number of endpoints in the change.
func (c *Change[Req, Rsp]) len() int { return len(c.Added) + len(c.Changed) + len(c.Removed) }

// Option configures [Endpoints].
type Option[Rsp any] func(*options[Rsp])

// options holds the settings of Endpoints.
type options[Rsp any] struct {
	complete layer.Completion[Rsp]
}

// newOptions returns the settings in opts, with the default completion if there is none.
func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
	option.Apply(&o, opts)
	if o.complete == nil {
		o.complete = layer.AtEnd[Rsp]()
	}
	return o
}

// WithCompletion sets the function that determines when a response ends. After an endpoint was
// removed, its service's context ends when its last response has ended. The default is
// [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return func(o *options[Rsp]) { o.complete = c }
}
