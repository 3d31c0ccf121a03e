package grpclayer

import (
	"slices"

	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Option configures [DialOptions], [NewResolver], [NewBalancer] or [Register]. In a client that uses both
// a resolver and a balancer of this package, the options of NewResolver or DialOptions are applied after
// those of the balancer, and so override them.
type Option func(*settings)

// settings holds the options. The resolver passes its settings to the balancer through gRPC.
type settings struct {
	endpoint layer.Layer[balancer.PickInfo, *Pick] // of WithEndpointLayer; nil without it
	balance  balance.Config
	picks    []balance.Option[*Pick] // further options of the balancer
	calls    Layer                   // of WithCallLayer; nil without it
	config   string                  // service config, in JSON

	introspect  func(layer.Describer) // of WithOnBalancer; nil without it
	dialOptions bool                  // DialOptions made both the resolver and the balancer, with these settings
	live        *balancers            // the balancers that use these settings

	opts []Option // the options that made these settings
}

// newSettings returns the settings in opts. PickCompletion comes first, so that an option of
// WithBalance can override it.
func newSettings(opts []Option) *settings {
	s := &settings{live: new(balancers), opts: slices.Clone(opts)}
	option.Apply(s, opts)
	s.picks = append([]balance.Option[*Pick]{balance.WithCompletion(PickCompletion)}, s.picks...)
	return s
}

// WithEndpointLayer applies l, such as a breaker or a limit, to the picks of each endpoint. A
// pick chooses the connection for an RPC; it sends nothing and must not wait. By default no layer
// applies to picks. You should build l with [NewEndpointStack], so that its layers learn when the
// RPC ends and what its class is.
//
// For a Queue, a Retry, or a layer that changes the context or measures the duration of Call
// (such as AdaptiveLimit), use [WithCallLayer].
func WithEndpointLayer(l layer.Layer[balancer.PickInfo, *Pick]) Option {
	return func(s *settings) { s.endpoint = l }
}

// WithBalance configures the balancer, and adds further options of package balance. The target is always
// that of the ClientConn, and not cfg.Target.
func WithBalance(cfg balance.Config, opts ...balance.Option[*Pick]) Option {
	return func(s *settings) { s.balance, s.picks = cfg, append(s.picks, opts...) }
}

// WithCallLayer applies l, usually time limits, retries and a queue, to all of a client's calls,
// above the balancer. By default no layer applies to calls. Only [DialOptions] uses this option.
//
// The service below l is ready when the ClientConn's balancer is ready. It is always ready while
// the ClientConn is idle, or if several ClientConns share the same DialOptions, because the next
// call's balancer is then unknown.
func WithCallLayer(l Layer) Option {
	return func(s *settings) { s.calls = l }
}

// WithOnBalancer calls the function seen with each new balancer of a ClientConn. Its Describe
// method shows the endpoints with their layers, estimates and reasons. A ClientConn creates
// another balancer when it leaves the idle state. The function seen must not wait.
func WithOnBalancer(seen func(balancer layer.Describer)) Option {
	return func(s *settings) { s.introspect = seen }
}
