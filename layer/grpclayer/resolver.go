package grpclayer

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// NewResolver returns a [resolver.Builder] that uses r, for [grpc.WithResolvers]. With the
// scheme "gotower", r resolves "web:80" for the target "gotower:///web:80". It works with
// each balancer of grpc-go. The balancer of this package also gets the attributes of
// endpoints and the options.
//
// After an error of r the last endpoints remain. Each ClientConn in use has one goroutine,
// which ends when the ClientConn is closed or idle.
//
// The certificate of an endpoint is verified against the TLS server name of the endpoint.
// The credentials determine whether TLS is used, see [EndpointID]. All endpoints have the
// same authority, the name in the target, because gRPC supports no other. If that is a name
// of SRV records, the authority is the domain: web.test:80 for
// "gotower:///_grpc._tcp.web.test:80". Credentials with a server name, and
// [grpc.WithAuthority], override the authority.
//
// NewResolver panics if r is nil, or if scheme is not a scheme of RFC 3986 in lower case.
func NewResolver(scheme string, r resolve.Resolver, opts ...Option) resolver.Builder {
	return newResolver(scheme, r, newSettings(opts))
}

func newResolver(scheme string, r resolve.Resolver, s *settings) *resolverBuilder {
	if r == nil {
		panic("grpclayer: nil resolver")
	}
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

type resolverBuilder struct {
	scheme   string
	resolver resolve.Resolver
	settings *settings
}

func (b *resolverBuilder) Scheme() string { return b.scheme }

// Build starts a goroutine that resolves the target until Close is called.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var config *serviceconfig.ParseResult // nil: the ClientConn has its own
	if b.settings.dialOptions {
		config = cc.ParseServiceConfig(serviceConfig(b.settings.config, b.scheme))
		// A pending state starts our balancer before the first result of r.
		state := stateOf(new(resolve.Set), b.settings)
		state.ServiceConfig = config
		if err := cc.UpdateState(state); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go b.watch(ctx, target.Endpoint(), cc, config)
	return resolution(cancel), nil
}

// watch resolves name and reports the endpoints to cc, until ctx ends. If the resolver
// panics, watch reports the panic as its last error.
func (b *resolverBuilder) watch(ctx context.Context, name string, cc resolver.ClientConn, config *serviceconfig.ParseResult) {
	if err := panics.Contain(func() { b.follow(ctx, name, cc, config) }); err != nil && ctx.Err() == nil {
		cc.ReportError(&resolverError{fmt.Errorf("grpclayer: resolve %q: %w", name, err), b.settings})
	}
}

func (b *resolverBuilder) follow(ctx context.Context, name string, cc resolver.ClientConn, config *serviceconfig.ParseResult) {
	var set resolve.Set
	failed := false
	for u, err := range b.resolver.Resolve(ctx, name) {
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed = true
			cc.ReportError(&resolverError{err, b.settings})
			continue
		}
		changed := set.Apply(u).HasChanges()
		if set.State() == resolve.StatePending || !changed && !failed {
			continue
		}
		failed = false
		state := stateOf(&set, b.settings)
		state.ServiceConfig = config
		// The error requests another resolution, and this loop continues.
		_ = cc.UpdateState(state)
	}
}

// resolverError is an error of the resolver. It passes the settings to the balancer, because the
// error may be the first that the balancer gets.
type resolverError struct {
	error
	settings *settings
}

func (e *resolverError) Unwrap() error { return e.error }

// resolution is the resolver of one ClientConn. Its value is the function that cancels the
// resolution.
type resolution context.CancelFunc

// ResolveNow does nothing, because the resolver reports changes by itself.
func (resolution) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the resolution, but does not wait for its goroutine.
func (r resolution) Close() { r() }

// OverrideAuthority returns the authority of calls to target. If target is a name of SRV records,
// the authority is the domain in that name. Otherwise it is the default authority of gRPC.
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

func inAuthority(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("-_.~!$&'()*+,;=:[]@", c) >= 0
}
