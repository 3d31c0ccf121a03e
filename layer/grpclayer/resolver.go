package grpclayer

import (
	"context"

	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/resolve"
)

// NewResolver makes a [resolver.Builder] of gRPC's from r, for [grpc.WithResolvers]. It
// takes targets of the given scheme, in lower case: for "gotower:///web:80"
// r is asked for "web:80". It works with every balancer of gRPC's; with ours it
// also brings what is known of each endpoint, and the options.
//
// An error of r is news: what is known stays in force. gRPC's hint to resolve
// again is not needed, as r goes on by itself. Each ClientConn that is in use
// has one goroutine, which ends when it is closed or idle.
//
// The TLS server name of an endpoint is what its certificate is checked
// against; an authority of its own it cannot have in gRPC. Whether TLS is used
// is up to the credentials: see [EndpointID].
//
// The authority of calls, and so the name in the certificate of an endpoint that
// has no server name of its own, is that of the target; for SRV records it is
// their domain, web.test:80 for "gotower:///_grpc._tcp.web.test:80". Credentials
// with a name, and [grpc.WithAuthority], win over it.
func NewResolver(scheme string, r resolve.Resolver, opts ...Option) resolver.Builder {
	return &resolverBuilder{scheme: scheme, resolver: r, settings: newSettings(opts)}
}

type resolverBuilder struct {
	scheme   string
	resolver resolve.Resolver
	settings *settings
}

// Scheme is the one that was given.
func (b *resolverBuilder) Scheme() string { return b.scheme }

// Build resolves the target until Close.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(context.Background())
	go b.watch(ctx, target.Endpoint(), cc)
	return watching(cancel), nil
}

func (b *resolverBuilder) watch(ctx context.Context, name string, cc resolver.ClientConn) {
	var set resolve.Set
	failed, known := false, false
	for u, err := range b.resolver.Resolve(ctx, name) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if failed = true; !known && b.settings.ours {
				// gRPC makes a balancer when there is a state, and until then
				// takes the error for itself. Ours knows what to make of it.
				known = true
				_ = cc.UpdateState(stateOf(&set, b.settings))
			}
			cc.ReportError(err)
			continue
		}
		changed := set.Apply(u).Any()
		if set.State() == resolve.StatePending || !changed && !failed {
			continue
		}
		failed, known = false, true
		// What it returns asks to resolve again, which goes on all the time.
		_ = cc.UpdateState(stateOf(&set, b.settings))
	}
}

// watching is a resolver at work.
type watching context.CancelFunc

// ResolveNow does nothing.
func (watching) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends it, and does not wait for that.
func (w watching) Close() { w() }
