package httpclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// WithQueue sets the number of requests that may wait for a ready endpoint, and the longest wait of
// each. The default is 1000 requests and 3 s. With a capacity of 0, a request fails at once if no
// endpoint is ready. Values below 0 panic, and so does a maxWait of 0 with a capacity. See also
// [WithWaitForReady].
func WithQueue(capacity int, maxWait time.Duration) Option {
	if capacity < 0 || maxWait < 0 || capacity > 0 && maxWait == 0 {
		panic(fmt.Sprintf("httpclient: WithQueue is %d requests and %v, want at least 0 requests and more than 0", capacity, maxWait))
	}
	return func(o *options) { o.queue = &queue{capacity, maxWait} }
}

// queue holds the arguments of WithQueue.
type queue struct {
	capacity int
	maxWait  time.Duration
}

// WithWaitForReady lets requests wait in the queue also while every endpoint has failed, for example
// while the only server restarts. By default such a request fails at once, as with net/http: see
// FailFast in [balance.Config]. Unlike net/http, it does not connect itself: an attempt follows after a
// backoff of at most 1 s, so that requests may fail for that long after the server is back.
func WithWaitForReady() Option { return func(o *options) { o.waitForReady = true } }

// WithHedge sends a copy of an idempotent request to another endpoint if the first takes longer than
// most. See [layer.Hedge]. Without p.Budget, retries and copies share the retries' budget. An invalid
// policy panics.
func WithHedge(p httplayer.HedgePolicy) Option {
	httplayer.NewStack().Hedge(p) // panics if p is invalid
	return func(o *options) { o.hedge = &p }
}

// WithBreaker adds a circuit breaker to each endpoint: the endpoint gets no requests while its breaker
// is open. See [layer.Breaker], and [balance.OutlierDetection] for another form. An invalid policy
// panics.
func WithBreaker(p layer.BreakerPolicy) Option {
	if err := p.Validate(); err != nil {
		panic("httpclient: " + err.Error())
	}
	return func(o *options) { o.breaker = &p }
}

// WithLimit limits the requests in flight at all endpoints together. Further requests wait in the
// queue. An n below 1 panics.
func WithLimit(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("httpclient: WithLimit is %d, want at least 1", n))
	}
	return func(o *options) { o.limit = n }
}

// WithEndpointLimit limits the requests in flight at each endpoint. Further requests go to other
// endpoints, or wait in the queue. An n below 1 panics. See also [httplayer.WithMaxConns].
func WithEndpointLimit(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("httpclient: WithEndpointLimit is %d, want at least 1", n))
	}
	return func(o *options) { o.endpointLimit = n }
}

// WithLayer adds a layer above all layers of the client, such as one for authentication.
// [layer.Describe] shows it by name. Further layers follow below it. A retry does not pass the layer
// again; see [WithEndpointLayer] for a layer that each attempt passes. A nil layer panics.
func WithLayer(name string, l httplayer.Layer) Option {
	if l == nil {
		panic("httpclient: WithLayer: nil layer")
	}
	return func(o *options) { o.layers = append(slices.Clip(o.layers), named{name, l}) }
}

// named is a layer that WithLayer adds, with the name under which [layer.Describe] shows it.
type named struct {
	name  string
	layer httplayer.Layer
}

// WithPreconnect connects to each endpoint when the resolver has found it, so that the first request
// need not wait. A connection that no request uses is closed after the idle timeout.
func WithPreconnect() Option { return func(o *options) { o.preconnect = true } }

// WithEndpointTLS sets the function that returns the TLS configuration for an endpoint, in place of
// [WithTLS]'s argument. It returns nil for an endpoint without TLS. An empty ServerName is replaced as
// by WithTLS. The function must be safe for concurrent use. An endpoint with a mesh identity (Identity
// in [resolve.ID]) is used only with this function, which should return a configuration that verifies
// the identity, or nil to connect to a meshed Pod without TLS. A nil function panics.
func WithEndpointTLS(f func(t discover.Target) *tls.Config) Option {
	if f == nil {
		panic("httpclient: WithEndpointTLS: nil function")
	}
	return func(o *options) { o.tlsOf = f }
}

// connect opens a connection of the endpoint e in the background. A failure needs no report, because
// the first request finds it again.
func connect(ctx context.Context, e *httplayer.Endpoint) {
	go func() { _ = e.Connect(ctx) }()
}
