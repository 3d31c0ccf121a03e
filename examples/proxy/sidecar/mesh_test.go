package sidecar_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Identities in a mesh.
const (
	caName     = "identity.cluster.local"
	clientName = "client.cluster.local"
	serverName = "server.cluster.local"
	tapName    = "tap.cluster.local"
)

// authority is a certificate authority that is served with TLS.
type authority struct {
	*ca.Authority
	addr string
}

func newAuthority(t testing.TB, check ca.Check) *authority {
	t.Helper()
	a, err := ca.New("cluster.local")
	require.NoError(t, err)
	return serveAuthority(t, a, check)
}

func serveAuthority(t testing.TB, a *ca.Authority, check ca.Check) *authority {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ca.Serve(ctx, l, a, check, caName) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &authority{a, l.Addr().String()}
}

func anyClient(context.Context, string, []byte) error { return nil }

// identified gives a proxy an identity.
func (a *authority) identified(t testing.TB, name string) func(*sidecar.Config) {
	t.Helper()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	require.NoError(t, identity.Generate(dir, name))
	return func(c *sidecar.Config) {
		c.Settings.Identity = &settings.Identity{
			Controller: settings.Controller{Addr: a.addr, Name: caName}, Dir: dir, TrustAnchors: a.TrustAnchors(), TokenFile: token,
			ServerID: name, ServerName: name,
		}
		c.Settings.Tap.Name = tapName
	}
}

// of returns an identity for a client that is not a proxy.
func (a *authority) of(t testing.TB, name string) *identity.Identity {
	t.Helper()
	key, _, err := identity.Request(name)
	require.NoError(t, err)
	chain, err := a.Issue(name, key.Public())
	require.NoError(t, err)
	cert := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(a.TrustAnchors()))
	id, err := identity.Static(cert, roots)
	require.NoError(t, err)
	return id
}

// run starts a proxy. stop ends it before the test ends, without waiting. ended receives Run's
// result.
func run(t testing.TB, controllerAddr string, change ...func(*sidecar.Config)) (p *sidecar.Proxy, stop func(), ended <-chan error) {
	t.Helper()
	c := sidecar.Config{Settings: settingsFor(t, controllerAddr)}
	for _, f := range change {
		f(&c)
	}
	p, err := sidecar.New(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		done <- p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
	})
	return p, cancel, done
}

// fixed sends all of one side's connections to addr.
func fixed(addr string) settings.Origin {
	return settings.Origin{Kind: settings.Fixed, Addr: netip.MustParseAddrPort(addr)}
}

// service is the address of a service.
const service = "10.9.8.7:80"

// services configures the addresses for which the controller has profiles.
func services(c *sidecar.Config) {
	c.Control.ProfileNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
}

// toService sends all of the application's connections to a service's address.
func toService(c *sidecar.Config) {
	services(c)
	c.Outbound.Origin = fixed(service)
}

// mesh consists of two proxies with identities between a client and an application:
//
//	client ─▶ service ─▶ outbound of a ─▶ mutual TLS ─▶ inbound of b ─▶ application
type mesh struct {
	*authority
	ctl  *script
	a, b *testProxy
}

// newMesh forwards a client's connections to service through two proxies to the application at app.
// hints change the endpoint, which is the proxy b.
func newMesh(t testing.TB, app string, hints ...func(*destination.WeightedAddr)) *mesh {
	t.Helper()
	m := meshOf(t, app)
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.answer(t, endpointAt(m.b.Inbound, append(hints, proves(serverName))...))
	return m
}

func meshOf(t testing.TB, app string) *mesh {
	t.Helper()
	m := &mesh{authority: newAuthority(t, anyClient), ctl: newScript(t)}
	m.b = newTestProxy(t, m.ctl.addr, m.identified(t, serverName), func(c *sidecar.Config) {
		if app != "" {
			c.Settings.Inbound.Origin = fixed(app)
		}
	})
	m.a = newTestProxy(t, m.ctl.addr, m.identified(t, clientName), toService)
	return m
}

// answer sends endpoints in response to the query that the first request causes.
func (m *mesh) answer(t testing.TB, endpoints ...*destination.WeightedAddr) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case q := <-m.ctl.asked:
				if q.target != webName {
					continue
				}
				for _, e := range endpoints {
					select {
					case q.updates <- &destination.Update{Update: &destination.Update_Add{
						Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{e}},
					}}:
					case <-ctx.Done():
						return
					}
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// h2Client returns a client that uses HTTP/2 with prior knowledge.
func h2Client(t testing.TB, addr string) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
