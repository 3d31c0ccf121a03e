package grpclayer

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"

	"github.com/gotower/gotower/resolve"
)

// Register makes our balancer known to gRPC by a name. The registry is a
// global of gRPC's, and not safe for concurrent use: call it once, before the
// first client is made. What options say holds where a client's resolver says
// nothing else; see [DialOptions].
func Register(name string, opts ...Option) { balancer.Register(NewBalancer(name, opts...)) }

// DialOptions makes a plain client resolve names with r, balance with our
// balancer, and have its calls go through our layers:
//
//	grpclayer.Register("gotower") // once
//	cc, err := grpc.NewClient("gotower:///web.default:80",
//		append(grpclayer.DialOptions("gotower", r), credentials)...)
//
// The name, in lower case, is the scheme of the target and the name of the
// balancer. If it was not registered by [Register], [grpc.NewClient] fails: its
// error names the balancer and says "no supported policies found in config".
// Two clients may have the same name and other options.
//
// gRPC takes the last [grpc.WithDefaultServiceConfig] and forgets those before, and
// these options have one. So give a service config to [WithServiceConfig]. One that comes
// after these options and does not name our balancer fails all calls with an error
// that says so.
//
// A nil r panics, and so does a name that is not a scheme: see [NewResolver].
func DialOptions(name string, r resolve.Resolver, opts ...Option) []grpc.DialOption {
	opts = append(slices.Clip(opts), option(func(s *settings) { s.ours = true }))
	s := newSettings(opts)
	client := &Client{svc: applied(s.calls, &balanced{leaf(), &s.live}), layered: s.calls != nil, live: &s.live}
	return append(client.DialOptions(),
		grpc.WithResolvers(newResolver(name, r, s)),
		grpc.WithDefaultServiceConfig(serviceConfig(s.config, name)),
	)
}
