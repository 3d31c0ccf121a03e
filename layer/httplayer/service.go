package httplayer

import (
	"context"
	"net/http"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Service is a [layer.Service] for the messages of net/http. If it rejects a request, the
// body stays unread and open. A service that admits a request closes its body, as an
// [http.RoundTripper] does.
type Service = layer.Service[*http.Request, *http.Response]

// These policies of package layer configure retries, hedges, fallbacks and faults. They have the
// message types of net/http.
type (
	RetryPolicy    = layer.RetryPolicy[*http.Request, *http.Response]
	HedgePolicy    = layer.HedgePolicy[*http.Request]
	FallbackPolicy = layer.FallbackPolicy[*http.Request, *http.Response]
	FaultPolicy    = layer.FaultPolicy[*http.Request]
)

// NewStack returns an empty stack for the messages of net/http. Its layers use [Completion],
// [Classify] and [Replayer], unless opts replace them.
func NewStack(opts ...layer.Option[*http.Response]) layer.Stack[*http.Request, *http.Response] {
	protocol := []layer.Option[*http.Response]{
		layer.WithCompletion(Completion), layer.WithClassifier(Classify), layer.WithReplayer[*http.Request, *http.Response](Replayer{}),
	}
	return layer.NewStack[*http.Request](slices.Concat(protocol, opts)...)
}

// callFunc handles a request in a layer. It usually passes the request on to next.
type callFunc func(ctx context.Context, req *http.Request, next Service) (*http.Response, error)

// newLayer returns a layer that calls f for each request and forwards Ready. Describe of the layer
// shows the arguments name and state.
func newLayer(name string, state layer.State, f callFunc) Layer {
	return func(next Service) Service { return &around{next, name, state, f} }
}

// around is the Service of a layer. Its method Call runs the function in the field call, which can
// pass the request on to the embedded Service. Its method Ready is that of the embedded Service.
type around struct {
	Service
	name  string
	state layer.State
	call  callFunc
}

func (a *around) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return a.call(ctx, req, a.Service)
}

func (a *around) Next() Service { return a.Service }

func (a *around) Describe() layer.Node { return layer.Node{Name: a.name, State: a.state} }

// Layer, Stack and Option are generic types of package layer, for the messages of net/http.
type (
	Layer  = layer.Layer[*http.Request, *http.Response]
	Stack  = layer.Stack[*http.Request, *http.Response]
	Option = layer.Option[*http.Response]
)

// WithTarget sets the name of the target of a stack, which layers show in errors and descriptions.
// It calls [layer.WithTarget].
func WithTarget(target string) Option { return layer.WithTarget[*http.Response](target) }

// WithMetrics sets the instruments in which layers record their measurements. It calls
// [layer.WithMetrics].
func WithMetrics(i layer.Instruments) Option { return layer.WithMetrics[*http.Response](i) }
