package layer

import (
	"context"

	"github.com/gotower/gotower/internal/reqctx"
)

// Shared returns a layer with a single state for all services that it wraps. Use it if several
// services should share a [Limit], [AdaptiveLimit], [RateLimit], [RateLimitBy] or [Breaker], such
// as the routes to one database:
//
//	limit := layer.Shared(layer.Limit[Request, Response](100))
//	read := layer.NewStack[Request, Response]().With("limit", limit).Service(replica)
//	write := layer.NewStack[Request, Response]().With("limit", limit).Service(primary)
//
// Without Shared, each service keeps its own state. A [Budget] needs no Shared, as it is a field
// of the policies.
//
// Shared applies the layer l once. Admission, cancellation, body and errors are as in l. The
// services may differ, but not in their types. An open breaker rejects the requests of all
// services, and Ready waits for the service whose Ready was called.
//
// Cost: that of l, a context look-up and one allocation.
//
// The layer l must call the inner service with the request context or one derived from it, as all
// layers of this package do. Otherwise the request is rejected.
func Shared[Req, Rsp any](l Layer[Req, Rsp]) Layer[Req, Rsp] {
	check(l != nil, "Shared: nil layer")
	s := &sharedLayer[Req, Rsp]{}
	// The shared layer wraps s, which forwards each request to the service below the place where it came in.
	s.service = l(s)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &shared[Req, Rsp]{wrapper[Req, Rsp]{next}, s}
	}
}

// sharedLayer is what the shared layer sees as its inner service. For each request it forwards to the
// service below the place where the request has entered the layer, which it finds in the context.
type sharedLayer[Req, Rsp any] struct {
	service Service[Req, Rsp] // what the shared layer has made
}

// errNotShared is the rejection of a request whose context lacks the place where it has entered the shared layer.
var errNotShared = &Error{Layer: "shared", Kind: ErrNotReady, Reason: "the layer does not pass the context of the request"}

// instance returns the place where the request with the context ctx has entered the shared layer.
func (s *sharedLayer[Req, Rsp]) instance(ctx context.Context) (*shared[Req, Rsp], error) {
	// The key is s itself, so that nested shared layers do not find each other's values.
	if instance, ok := ctx.Value(s).(*shared[Req, Rsp]); ok {
		return instance, nil
	}
	return nil, errNotShared
}

// Ready waits until the service below the place where the request has entered the shared layer is
// ready.
func (s *sharedLayer[Req, Rsp]) Ready(ctx context.Context) error {
	instance, err := s.instance(ctx)
	if err != nil {
		return err
	}
	return instance.Service.Ready(ctx)
}

// Call sends req to the service below the place where it has entered the shared layer.
func (s *sharedLayer[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	instance, err := s.instance(ctx)
	if err != nil {
		return rsp, err
	}
	return instance.Service.Call(ctx, req)
}

// shared is one of the services that a shared layer has made: it passes requests to the layer, and holds the
// service that was wrapped there, to which the layer's requests must return.
type shared[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	layer *sharedLayer[Req, Rsp]
}

// Ready calls Ready of the shared layer, on behalf of this service.
func (s *shared[Req, Rsp]) Ready(ctx context.Context) error {
	// sharedLayer.Ready reads s from the context.
	return s.layer.service.Ready(reqctx.WithValue(ctx, s.layer, s))
}

// Call sends req through the shared layer, which then calls this service.
func (s *shared[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	// sharedLayer.Call reads s from the context.
	return s.layer.service.Call(reqctx.WithValue(ctx, s.layer, s), req)
}

// Describe returns the node of the shared layer, marked as shared.
func (s *shared[Req, Rsp]) Describe() Node {
	n := describeOne(s.layer.service)
	n.State = append(n.State, Attr{"shared", true})
	return n
}
