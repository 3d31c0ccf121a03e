package grpclayer

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/resolve"
)

// Register registers this package's balancer with gRPC under the given name. You should call it
// once, before you make the first client, because gRPC's registry is not safe for concurrent use.
// Options given to [DialOptions] take precedence over opts.
func Register(name string, opts ...Option) { balancer.Register(NewBalancer(name, opts...)) }

// DialOptions returns the options for a client that resolves names with r, uses this package's
// balancer, and applies the layers in opts to its calls:
//
//	grpclayer.Register("gotower") // once
//	cc, err := grpc.NewClient("gotower:///web.default:80",
//		append(grpclayer.DialOptions("gotower", r), credentials)...)
//
// name, in lower case, is both the target's scheme and the balancer's name. If no balancer is
// registered under that name, [grpc.NewClient] fails with "no supported policies found in
// config". Clients with the same name may have different options.
//
// To pass a service config, use [WithServiceConfig]. With a later [grpc.WithDefaultServiceConfig]
// that selects another balancer, calls fail with UNAVAILABLE and this advice. DialOptions
// overrides an earlier one.
//
// DialOptions panics if r is nil or name is not a valid scheme, see [NewResolver].
func DialOptions(name string, r resolve.Resolver, opts ...Option) []grpc.DialOption {
	// live connects the interceptors with the balancers, which gRPC makes later.
	live := new(balancers)
	// The options go into both the interceptors and the resolver, which passes them to the balancer.
	opts = append(slices.Clip(opts), func(s *settings) { s.dialOptions, s.live = true, live })
	s := newSettings(opts)
	client := &Client{svc: applied(s.calls, &balanced{leaf(), live}), layered: s.calls != nil, live: live}
	return append(client.DialOptions(),
		grpc.WithResolvers(newResolver(name, r, s)),
		grpc.WithDefaultServiceConfig(serviceConfig(s.config, name)),
	)
}
