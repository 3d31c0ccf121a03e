package httplayer

import (
	"net/http"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Service is a [layer.Service] for the messages of net/http. If it rejects a request, the
// body stays unread and open. A service that admits a request closes its body, as an
// [http.RoundTripper] does.
type Service = layer.Service[*http.Request, *http.Response]

// Aliases for policies of package layer with the messages of net/http.
type (
	RetryPolicy    = layer.RetryPolicy[*http.Request, *http.Response]
	HedgePolicy    = layer.HedgePolicy[*http.Request]
	FallbackPolicy = layer.FallbackPolicy[*http.Request, *http.Response]
	FaultPolicy    = layer.FaultPolicy[*http.Request]
)

// NewStack returns an empty stack for the messages of net/http. Its layers use
// [Completion], [Classify] and [Replayer]. The options opts are applied afterwards and may
// replace them.
func NewStack(opts ...layer.Option[*http.Response]) layer.Stack[*http.Request, *http.Response] {
	protocol := []layer.Option[*http.Response]{
		layer.WithCompletion(Completion), layer.WithClassifier(Classify), layer.WithReplayer[*http.Request, *http.Response](Replayer{}),
	}
	return layer.NewStack[*http.Request](slices.Concat(protocol, opts)...)
}
