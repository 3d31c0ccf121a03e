package grpclayer

import (
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// Option configures our resolver and balancer in grpc-go.
type Option interface{ apply(s *settings) }

type settings struct {
	endpoint layer.Layer[balancer.PickInfo, *Pick]
	balance  []balance.Option[*Pick]
	calls    Layer
	config   string // service config, in JSON

	introspect  func(layer.Describer)
	dialOptions bool // resolver and balancer have the same options
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

// WithEndpointLayer applies l to the picks of each endpoint, such as a breaker or
// a limit. Use a stack of [NewEndpointStack], which has the end and the class of
// a pick. The default is without a layer.
//
// A picker of gRPC must not wait, and a pick sends nothing. So use [WithCallLayer] for a Queue,
// a Retry, and layers that change the context or measure Call, such as AdaptiveLimit.
func WithEndpointLayer(l layer.Layer[balancer.PickInfo, *Pick]) Option {
	return option(func(s *settings) { s.endpoint = l })
}

// WithBalance sets options of package balance, which has the defaults.
func WithBalance(opts ...balance.Option[*Pick]) Option {
	return option(func(s *settings) { s.balance = append(s.balance, opts...) })
}

// WithCallLayer applies l to all calls of a client, above the balancer: time
// limits, retries, a queue. The default is without a layer. Only [DialOptions]
// uses it. The client is ready when its balancer is. An idle client, or one that
// shares the options with another, is always ready.
func WithCallLayer(l Layer) Option {
	return option(func(s *settings) { s.calls = l })
}

// WithOnBalancer calls seen with each new balancer of a ClientConn, whose Describe
// shows the endpoints with their layers, estimates and reasons. A ClientConn that
// was idle has a new balancer. seen must not wait.
func WithOnBalancer(seen func(balancer layer.Describer)) Option {
	return option(func(s *settings) { s.introspect = seen })
}
