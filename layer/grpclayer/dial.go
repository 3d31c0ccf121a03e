package grpclayer

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/resolve"
)

// Register registers the balancer of this package in gRPC under the given name. Call it
// once, before the first client is made, because the registry of gRPC is not safe for
// concurrent use. The options of [DialOptions] take precedence over opts.
func Register(name string, opts ...Option) { balancer.Register(NewBalancer(name, opts...)) }

// DialOptions returns the options of a client that resolves names with r. The client uses
// the balancer of this package, and applies the layers of opts to its calls:
//
//	grpclayer.Register("gotower") // once
//	cc, err := grpc.NewClient("gotower:///web.default:80",
//		append(grpclayer.DialOptions("gotower", r), credentials)...)
//
// The argument name, in lower case, is both the scheme of the target and the name of the
// balancer. If no balancer is registered under that name, [grpc.NewClient] fails with "no
// supported policies found in config". Clients with the same name may have different
// options.
//
// Pass a service config by [WithServiceConfig]. gRPC ignores
// [grpc.WithDefaultServiceConfig], because the resolver provides a service config.
//
// DialOptions panics if r is nil or name is not a valid scheme, see [NewResolver].
func DialOptions(name string, r resolve.Resolver, opts ...Option) []grpc.DialOption {
	live := new(balancers)
	opts = append(slices.Clip(opts), func(s *settings) { s.dialOptions, s.live = true, live })
	s := newSettings(opts)
	client := &Client{svc: applied(s.calls, &balanced{leaf(), live}), layered: s.calls != nil, live: live}
	return append(client.DialOptions(),
		grpc.WithResolvers(newResolver(name, r, s)),
		grpc.WithDefaultServiceConfig(serviceConfig(s.config, name)),
	)
}
