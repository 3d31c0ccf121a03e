package grpclayer

import (
	"slices"

	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Option is an option of [DialOptions], [NewResolver], [NewBalancer] and [Register]. In one client,
// an option of DialOptions or NewResolver takes precedence over the same option of the balancer.
type Option func(*settings)

type settings struct {
	endpoint layer.Layer[balancer.PickInfo, *Pick]
	balance  []balance.Option[*Pick]
	calls    Layer
	config   string // service config, in JSON

	introspect  func(layer.Describer)
	dialOptions bool // DialOptions made both the resolver and the balancer, with these settings
	live        *balancers

	opts []Option // the options that made these settings
}

func newSettings(opts []Option) *settings {
	s := &settings{live: new(balancers), opts: slices.Clone(opts)}
	option.Apply(s, opts)
	s.balance = append([]balance.Option[*Pick]{balance.WithCompletion(PickCompletion)}, s.balance...)
	return s
}

// WithEndpointLayer applies l, such as a breaker or a limit, to the picks of each
// endpoint. A pick chooses the connection of one RPC; it sends nothing and must not wait.
// By default no layer applies to picks. Build l with [NewEndpointStack], because its
// layers then get the end of the RPC and the class of its result.
//
// Use [WithCallLayer] for a Queue or a Retry. Also use it for a layer that changes the
// context, or that measures the duration of Call, such as AdaptiveLimit.
func WithEndpointLayer(l layer.Layer[balancer.PickInfo, *Pick]) Option {
	return func(s *settings) { s.endpoint = l }
}

// WithBalance sets options of package balance. Options that are not set have the defaults
// of that package.
func WithBalance(opts ...balance.Option[*Pick]) Option {
	return func(s *settings) { s.balance = append(s.balance, opts...) }
}

// WithCallLayer applies l to all calls of a client, above the balancer. Examples are time
// limits, retries and a queue. By default no layer applies to calls. Only [DialOptions]
// uses this option.
//
// The service below l is ready when the balancer of the ClientConn is ready. While the
// ClientConn is idle, the service is always ready. The service is also always ready if
// several ClientConns have the same DialOptions, because the balancer of the next call is
// then unknown.
func WithCallLayer(l Layer) Option {
	return func(s *settings) { s.calls = l }
}

// WithOnBalancer calls the function seen with each new balancer of a ClientConn. The method
// Describe of the balancer shows the endpoints with their layers, estimates and reasons. A
// ClientConn creates another balancer when it leaves the idle state. The function seen must
// not wait.
func WithOnBalancer(seen func(balancer layer.Describer)) Option {
	return func(s *settings) { s.introspect = seen }
}
