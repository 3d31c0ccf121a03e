package profiles_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

func pod(addr string) *resolve.Endpoint {
	return &resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(addr)}, Labels: map[string]string{"pod": "web-1"}}
}

// The table of linkerd's proxy: what a profile serve, in the order in which it
// is looked at.
func TestDispatch(t *testing.T) {
	const name, apex, asked = "web.ns.svc", "web.ns.svc:8080", "10.0.0.9:8080"
	routes := []profiles.Route{{Match: profiles.All{}}}
	targets := []profiles.Target{{Authority: "web-v1:80", Weight: 1}}
	at := pod("10.0.0.1:80")
	for what, tt := range map[string]struct {
		profile profiles.Profile
		want    profiles.Dispatch
	}{
		"nothing":            {profiles.Profile{}, profiles.Dispatch{Authority: asked}},
		"opaque":             {profiles.Profile{OpaqueProtocol: true}, profiles.Dispatch{Opaque: true, Authority: asked}},
		"endpoint":           {profiles.Profile{Endpoint: at}, profiles.Dispatch{To: profiles.ToEndpoint, Authority: "10.0.0.1:80", Endpoint: at}},
		"opaque endpoint":    {profiles.Profile{Endpoint: at, OpaqueProtocol: true}, profiles.Dispatch{Opaque: true, To: profiles.ToEndpoint, Authority: "10.0.0.1:80", Endpoint: at}},
		"endpoint, routes":   {profiles.Profile{Endpoint: at, Routes: routes, Targets: targets}, profiles.Dispatch{To: profiles.ToEndpoint, Authority: "10.0.0.1:80", Endpoint: at}},
		"no endpoint":        {profiles.Profile{Endpoint: &resolve.Endpoint{}}, profiles.Dispatch{Authority: asked}},
		"name":               {profiles.Profile{Name: name}, profiles.Dispatch{To: profiles.ToApex, Authority: apex}},
		"name, endpoint":     {profiles.Profile{Name: name, Endpoint: at}, profiles.Dispatch{To: profiles.ToApex, Authority: apex}},
		"no name, endpoint":  {profiles.Profile{Name: "no name", Endpoint: at}, profiles.Dispatch{To: profiles.ToEndpoint, Authority: "10.0.0.1:80", Endpoint: at}},
		"routes":             {profiles.Profile{Name: name, Routes: routes}, profiles.Dispatch{To: profiles.ToRoutes, Authority: apex}},
		"split":              {profiles.Profile{Name: name, Targets: targets}, profiles.Dispatch{To: profiles.ToRoutes, Authority: apex}},
		"opaque split":       {profiles.Profile{Name: name, Targets: targets, OpaqueProtocol: true}, profiles.Dispatch{Opaque: true, To: profiles.ToRoutes, Authority: apex}},
		"opaque has no path": {profiles.Profile{Name: name, Routes: routes, OpaqueProtocol: true}, profiles.Dispatch{Opaque: true, To: profiles.ToApex, Authority: apex}},
		"routes, no name":    {profiles.Profile{Routes: routes}, profiles.Dispatch{To: profiles.ToRoutes, Authority: asked}},
	} {
		assert.Equal(t, tt.want, tt.profile.Dispatch(asked), what)
	}
	assert.Equal(t, []string{"target", "apex", "routes", "endpoint", "unknown"}, []string{
		profiles.ToTarget.String(), profiles.ToApex.String(), profiles.ToRoutes.String(), profiles.ToEndpoint.String(),
		profiles.Destination(9).String(),
	})
}

// Whether a connection may be looked into has to be known before it is.
func TestDispatchInitialWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bs backends
		source := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: source, InitialWait: time.Minute}, access{}, bs.mk)
		time.AfterFunc(time.Second, func() { source.send(&profiles.Profile{OpaqueProtocol: true}, nil) })
		began := time.Now()
		d, err := r.Dispatch(t.Context())
		require.NoError(t, err)
		assert.Equal(t, profiles.Dispatch{Opaque: true, Authority: target}, d)
		assert.Equal(t, time.Second, time.Since(began))

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.Dispatch(gone)
		require.ErrorIs(t, err, layer.ErrNotReady)
	})
}

// forwarding is a Router with services of endpoints that the test counts.
type forwarding struct {
	t      *testing.T
	source profiles.Static
	router *router
	made   []string // endpoints
	labels []map[string]string
}

func newForwarding(t *testing.T, bs *backends, log *slog.Logger) *forwarding {
	t.Helper()
	f := &forwarding{t: t}
	c := profiles.Config{Target: target, Source: &f.source, InitialWait: time.Minute, Log: log}
	f.router = profiles.New(t.Context(), c, access{}, bs.mk, profiles.WithBackends(
		func(_ context.Context, b *profiles.Backend) service {
			if b.Endpoint == nil {
				return bs.mk(b.Authority)
			}
			e := b.Endpoint
			f.made, f.labels = append(f.made, e.Addr.String()), append(f.labels, e.Labels)
			return handler(func(ctx context.Context, _ request) (*reply, error) {
				return &reply{status: 200, from: e.Addr.String(), route: layer.RouteFromContext(ctx)}, nil
			})
		}))
	return f
}

func (f *forwarding) serve(p *profiles.Profile) *reply {
	f.t.Helper()
	f.source.Set(target, p)
	synctest.Wait()
	return send(f.t, f.router, "GET", "/")
}

func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bs backends
		log := newLog()
		f := newForwarding(t, &bs, log.logger())
		one := "10.0.0.1:80"
		all := []profiles.Route{{Name: "all", Match: profiles.All{}}}
		assert.Equal(t, one, f.serve(&profiles.Profile{Endpoint: pod(one), Targets: []profiles.Target{{"v2:80", 1}}}).from, "no split")
		rsp := f.serve(&profiles.Profile{Endpoint: pod(one), Routes: all})
		assert.Equal(t, &layer.Route{Name: "all"}, rsp.route, "routes act there, too")
		assert.Equal(t, []string{one}, f.made, "an equal endpoint keeps its service")
		assert.Equal(t, map[string]string{"pod": "web-1"}, f.labels[0])
		require.NoError(t, layer.Poll(f.router))

		renamed := pod(one)
		renamed.Labels = map[string]string{"pod": "web-2"}
		assert.Equal(t, one, f.serve(&profiles.Profile{Endpoint: renamed}).from)
		assert.Equal(t, []string{one, one}, f.made)

		assert.Equal(t, "web.ns:80", f.serve(&profiles.Profile{Name: "web.ns", Endpoint: renamed}).from, "a name comes first")
		assert.Equal(t, target, f.serve(&profiles.Profile{Endpoint: &resolve.Endpoint{ID: resolve.ID{Authority: "a b"}}}).from, "one that is not valid is left out")
		assert.Equal(t, []string{"Endpoint: endpoint invalid AddrPort: want an IP address and a port"}, log.errors("left out of a profile"))
		assert.Len(t, f.made, 2)
	})
}

func TestRouterWithoutBackends(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Endpoint: pod("10.0.0.1:80")}, &bs)
	assert.Equal(t, target, send(t, r, "GET", "/").from)
}

func TestEndpointValidate(t *testing.T) {
	at := netip.MustParseAddrPort("[fd00::1]:80")
	for want, e := range map[string]resolve.ID{
		"":                                    {Addr: at, Protocol: resolve.Opaque, ServerName: "a", Identity: "b", Authority: "web:80"},
		"want an IP address and a port":       {Addr: netip.AddrPortFrom(at.Addr(), 0)},
		"unknown protocol 3":                  {Addr: at, Protocol: 3},
		"a TLS server name needs an identity": {Addr: at, ServerName: "a"},
		`authority "a/b" is not a host`:       {Addr: at, Authority: "a/b"},
		`authority "a<b" is not a host`:       {Addr: at, Authority: "a<b"},
		`authority "web:" is not a host`:      {Addr: at, Authority: "web:"},
		`authority "web:65536" is not a host`: {Addr: at, Authority: "web:65536"},
		`authority "::1" is not a host`:       {Addr: at, Authority: "::1"},
	} {
		err := (&profiles.Profile{Endpoint: &resolve.Endpoint{ID: e}}).Validate()
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}
