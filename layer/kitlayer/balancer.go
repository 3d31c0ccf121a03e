package kitlayer

import (
	"errors"
	"fmt"

	"github.com/go-kit/kit/endpoint"
	"github.com/go-kit/kit/sd/lb" //nolint:depguard // only its interface and its error

	"github.com/gotower/gotower/layer"
)

// Balancer makes svc, such as a balance.Balancer, a go-kit balancer, for example for lb.Retry. Its Endpoint is always
// the same, and picks an instance for each request. While svc is not ready, Endpoint returns an error that wraps
// lb.ErrNoEndpoints and the reason. It is safe for concurrent use. A nil svc panics.
//
// You should prefer a Retry in a stack above svc: it withdraws from a budget, and does not send a request again to the
// same instance.
func Balancer[Req, Rsp any](svc layer.Service[Req, Rsp]) lb.Balancer {
	return balancer[Req, Rsp]{svc, Endpoint(svc)}
}

// balancer is the lb.Balancer of [Balancer]. all is the endpoint that sends each request through svc.
type balancer[Req, Rsp any] struct {
	svc layer.Service[Req, Rsp]
	all endpoint.Endpoint
}

// Endpoint returns the endpoint for all requests, or an error that wraps lb.ErrNoEndpoints while svc is not ready.
func (b balancer[Req, Rsp]) Endpoint() (endpoint.Endpoint, error) {
	if err := layer.Poll(b.svc); errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrClosed) {
		return nil, fmt.Errorf("%w: %w", lb.ErrNoEndpoints, err)
	}
	return b.all, nil
}
