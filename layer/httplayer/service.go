package httplayer

import (
	"net/http"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Service is what every package of this library calls a service, for the
// messages of net/http. A refusal leaves the body of a request unread and
// open; who admits a request closes its body, as an [http.RoundTripper] would.
type Service = layer.Service[*http.Request, *http.Response]

// The policies of package layer, for the messages of net/http.
type (
	RetryPolicy    = layer.RetryPolicy[*http.Request, *http.Response]
	HedgePolicy    = layer.HedgePolicy[*http.Request]
	FallbackPolicy = layer.FallbackPolicy[*http.Request, *http.Response]
	FaultPolicy    = layer.FaultPolicy[*http.Request]
)

// NewStack returns an empty stack for the messages of net/http. Its layers
// end a response where [Completion] says, judge it as [Classify] does, and send
// a request again as [Replayer] says; opts come after that.
func NewStack(opts ...layer.Option[*http.Response]) layer.Stack[*http.Request, *http.Response] {
	protocol := []layer.Option[*http.Response]{
		layer.WithCompletion(Completion), layer.WithClassifier(Classify), layer.WithReplayer[*http.Request, *http.Response](Replayer{}),
	}
	return layer.NewStack[*http.Request](slices.Concat(protocol, opts)...)
}
