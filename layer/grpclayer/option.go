package grpclayer

import (
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// Option sets how our resolver and balancer work inside gRPC.
type Option interface{ apply(s *settings) }

type settings struct {
	endpoint layer.Layer[balancer.PickInfo, *Pick]
	balance  []balance.Option[*Pick]
	calls    Layer
	config   string // service config, in JSON

	introspect func(layer.Describer)
	ours       bool // resolver and balancer are both ours
	live       balancers
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

// WithEndpointLayer puts l around the picks of each endpoint, with its own
// state for each: a breaker, a limit. Take a stack from [NewEndpointStack],
// which knows the end and the class of a pick. The default adds no layer.
//
// gRPC's pickers must not wait, and a pick sends nothing: no Queue belongs
// here, no Retry, and no layer that changes the context or measures Call, such
// as AdaptiveLimit. Use [WithCallLayer] for these.
func WithEndpointLayer(l layer.Layer[balancer.PickInfo, *Pick]) Option {
	return option(func(s *settings) { s.endpoint = l })
}

// WithBalance sets how endpoints are chosen; see package balance for the defaults.
func WithBalance(opts ...balance.Option[*Pick]) Option {
	return option(func(s *settings) { s.balance = append(s.balance, opts...) })
}

// WithCallLayer puts l around all calls of a client, above the balancer: time
// limits, retries, a queue. The default adds no layer. Only [DialOptions] uses
// it. To l the client is ready when its balancer is; an idle client, or one
// that shares the options with another, is always ready.
func WithCallLayer(l Layer) Option {
	return option(func(s *settings) { s.calls = l })
}

// WithOnBalancer has seen called with the balancer of a ClientConn as soon as there
// is one, and again when the ClientConn was idle and has another: its Describe
// shows the endpoints with their layers, estimates and reasons. It must not
// wait.
func WithOnBalancer(seen func(balancer layer.Describer)) Option {
	return option(func(s *settings) { s.introspect = seen })
}
