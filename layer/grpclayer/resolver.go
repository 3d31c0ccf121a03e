package grpclayer

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/resolver"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// NewResolver returns a [resolver.Builder] that uses r, for [grpc.WithResolvers]. With the scheme
// "gotower", r resolves "web:80" for the target "gotower:///web:80". You can combine it with any
// grpc-go balancer; this package's also gets the endpoints' attributes and the options.
//
// After r fails, the last endpoints remain. Each ClientConn in use runs one goroutine, which ends
// when the ClientConn is closed or idle.
//
// An endpoint's certificate is verified against its TLS server name. The credentials determine
// whether TLS is used, see [EndpointID]. All endpoints share one authority, the name in the
// target, because gRPC supports no other. If that name stands for SRV records, the authority is
// the domain: web.test:80 for "gotower:///_grpc._tcp.web.test:80". Credentials with a server
// name, and [grpc.WithAuthority], override the authority.
//
// NewResolver panics if r is nil, or if scheme is not an RFC 3986 scheme in lower case.
func NewResolver(scheme string, r resolve.Resolver, opts ...Option) resolver.Builder {
	return newResolver(scheme, r, newSettings(opts))
}

// newResolver returns the builder of resolvers for targets with the given scheme, which r resolves. It
// panics as NewResolver does.
func newResolver(scheme string, r resolve.Resolver, s *settings) *resolverBuilder {
	if r == nil {
		panic("grpclayer: nil resolver")
	}
	// letter reports whether character i is a letter from a to z.
	letter := func(i int) bool { return scheme[i] >= 'a' && scheme[i] <= 'z' }
	valid := scheme != "" && letter(0)
	for i := range len(scheme) {
		valid = valid && (letter(i) || scheme[i] >= '0' && scheme[i] <= '9' || strings.IndexByte("+-.", scheme[i]) >= 0)
	}
	if !valid {
		panic(fmt.Sprintf("grpclayer: scheme %q must be a letter from a to z, then such letters, digits, '+', '-' or '.'", scheme))
	}
	return &resolverBuilder{scheme: scheme, resolver: r, settings: s}
}

// resolverBuilder makes a resolver for each ClientConn.
type resolverBuilder struct {
	scheme   string
	resolver resolve.Resolver
	settings *settings
}

// Scheme returns the target scheme for which gRPC uses the resolver.
func (b *resolverBuilder) Scheme() string { return b.scheme }

// Build starts a goroutine that resolves the target until Close is called.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	// Only DialOptions requires that gRPC uses this package's balancer.
	if b.settings.dialOptions {
		// A pending state starts our balancer before the first result of r.
		state := stateOf(new(resolve.Set), b.settings)
		started := new(atomic.Bool)
		state.Attributes = state.Attributes.WithValue(startedKey{}, started)
		// UpdateState calls the balancer before it returns, so started is set by now if the balancer is ours.
		if err := cc.UpdateState(state); !started.Load() {
			// Another balancer got the state. In ours, calls fail with an error that tells the
			// reason.
			state.ServiceConfig = cc.ParseServiceConfig(serviceConfig("", b.scheme))
			_ = cc.UpdateState(state)
			cc.ReportError(&resolverError{errOtherBalancer, b.settings})
			return resolution(func() {}), nil
		} else if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go b.watch(ctx, target.Endpoint(), cc)
	return resolution(cancel), nil
}

// errOtherBalancer tells a user how the client's options contradict each other.
var errOtherBalancer = fmt.Errorf("%w: grpc.WithDefaultServiceConfig selects another balancer than grpclayer.DialOptions: "+
	"pass the service config to grpclayer.WithServiceConfig", resolve.ErrUnresolvable)

// startedKey is the attribute of a resolver's first state. Its value is an *atomic.Bool that our
// balancer sets, because gRPC does not tell which balancer gets the state.
type startedKey struct{}

// watch resolves name and reports the endpoints to cc, until ctx ends. If the resolver
// panics, watch reports the panic as its last error.
func (b *resolverBuilder) watch(ctx context.Context, name string, cc resolver.ClientConn) {
	if err := panics.Contain(func() { b.follow(ctx, name, cc) }); err != nil && ctx.Err() == nil {
		cc.ReportError(&resolverError{fmt.Errorf("grpclayer: resolve %q: %w", name, err), b.settings})
	}
}

// follow resolves name with the resolver and passes each change to cc, until ctx ends or the resolver
// does.
func (b *resolverBuilder) follow(ctx context.Context, name string, cc resolver.ClientConn) {
	var set resolve.Set
	failed := false // gRPC got an error after the last state
	// The resolver yields one update or error after the other.
	for u, err := range b.resolver.Resolve(ctx, name) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed = true
			cc.ReportError(&resolverError{err, b.settings})
			continue
		}
		// After an error, the same endpoints are passed again, because gRPC takes them as the end of
		// the error.
		changed := set.Apply(u).HasChanges()
		if set.State() == resolve.StatePending || !changed && !failed {
			continue
		}
		failed = false
		// UpdateState may return an error, which asks for another resolution. The resolver reports changes by itself,
		// so the error is ignored.
		_ = cc.UpdateState(stateOf(&set, b.settings))
	}
}

// resolverError is an error of the resolver. It passes the settings to the balancer, because the
// error may be the first that the balancer gets.
type resolverError struct {
	error
	settings *settings
}

func (e *resolverError) Unwrap() error { return e.error }

// resolution is one ClientConn's resolver. Its value is the function that cancels the resolution.
type resolution context.CancelFunc

// ResolveNow does nothing, because the resolver reports changes by itself.
func (resolution) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the resolution, but does not wait for its goroutine.
func (r resolution) Close() { r() }

// OverrideAuthority returns the authority of calls to target: the domain if target is a name with
// SRV records, and otherwise gRPC's default.
func (*resolverBuilder) OverrideAuthority(target resolver.Target) string {
	return defaultAuthority(authority.Domain(target.Endpoint()))
}

// defaultAuthority returns the default authority of gRPC for a target with the given endpoint
// name. A name without a host, such as ":80", gets the host localhost.
func defaultAuthority(name string) string {
	if strings.HasPrefix(name, ":") {
		name = "localhost" + name
	}
	return escaped(name)
}

// escaped returns s with percent-encoding for an authority (RFC 3986, section 3.2).
func escaped(s string) string {
	// Usually nothing must be escaped.
	if !strings.ContainsFunc(s, func(r rune) bool { return r > 127 || !inAuthority(byte(r)) }) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if inAuthority(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

// inAuthority reports whether c may be in an authority unescaped.
func inAuthority(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("-_.~!$&'()*+,;=:[]@", c) >= 0
}
