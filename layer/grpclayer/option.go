package grpclayer

import (
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// Option configures the resolver and the balancer of this package.
type Option interface{ apply(s *settings) }

type settings struct {
	endpoint layer.Layer[balancer.PickInfo, *Pick]
	balance  []balance.Option[*Pick]
	calls    Layer
	config   string // service config, in JSON

	introspect  func(layer.Describer)
	dialOptions bool // resolver and balancer were made by DialOptions, with the same options
	live        balancers
}

type option func(*settings)

func (f option) apply(s *settings) { f(s) }

func newSettings(opts []Option) *settings {
	s := new(settings)
	for _, opt := range opts {
		if opt != nil {
			opt.apply(s)
		}
	}
	s.balance = append([]balance.Option[*Pick]{balance.WithCompletion(PickCompletion)}, s.balance...)
	return s
}

// WithEndpointLayer applies l, such as a breaker or a limit, to the picks of each endpoint.
// A pick sends nothing and must not wait. Build l with [NewEndpointStack], which reports the
// end of the RPC and the class of its result to the layers. By default picks pass without a layer.
//
// Use [WithCallLayer] for a Queue, a Retry, and layers that change the context or measure
// Call, such as AdaptiveLimit.
func WithEndpointLayer(l layer.Layer[balancer.PickInfo, *Pick]) Option {
	return option(func(s *settings) { s.endpoint = l })
}

// WithBalance sets options of package balance. Options that are not set have the defaults
// of that package.
func WithBalance(opts ...balance.Option[*Pick]) Option {
	return option(func(s *settings) { s.balance = append(s.balance, opts...) })
}

// WithCallLayer applies l to all calls of a client, above the balancer. Examples are time
// limits, retries and a queue. By default calls pass without a layer. Only [DialOptions]
// uses this option.
//
// The service below l is ready when the balancer of the client is ready. While the client
// is idle, it is always ready. It is also always ready if several clients are made with the
// same options, because the balancer is then unknown.
func WithCallLayer(l Layer) Option {
	return option(func(s *settings) { s.calls = l })
}

// WithOnBalancer calls seen with each new balancer of a ClientConn. Its method Describe
// shows the endpoints with their layers, estimates and reasons. A ClientConn gets another
// balancer after it was idle. seen must not wait.
func WithOnBalancer(seen func(balancer layer.Describer)) Option {
	return option(func(s *settings) { s.introspect = seen })
}
