package sidecar_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	tappb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
	"github.com/gotower/gotower/tap/match"
)

// A proxy without an identity rejects direct inbound connections.
func TestInboundPortWithoutIdentity(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr)
	conn, err := net.Dial("tcp", tn.Inbound)
	if err == nil { // it may be reset before that is seen
		defer conn.Close()
		say(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err = conn.Read(make([]byte, 1))
	}
	require.Error(t, err)
	require.Equal(t, http.StatusOK, adminStatus(t, tn, "/live"), "the proxy lives")
}

func adminStatus(t asking, tn *testProxy, path string) int {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status, _ := get(t, c, "http://"+tn.Admin+path)
	return status
}

// headed connects to a proxy's inbound port like another proxy, with a transport header for port,
// and requests path.
func headed(t *testing.T, id *identity.Identity, inbound string, port uint16, path string) (answer string, err error) {
	t.Helper()
	conn, err := net.Dial("tcp", inbound)
	require.NoError(t, err)
	return headedBy(t, conn, id, port, path)
}

func headedBy(t *testing.T, conn net.Conn, id *identity.Identity, port uint16, path string) (answer string, err error) {
	t.Helper()
	w := newWire(t, tls.Client(conn, id.Client(serverName, serverName, tcplayer.TransportProtocol)))
	h := tcplayer.TransportHeader{Port: port, Protocol: tcplayer.Opaque}
	say(w, string(h.AppendTo(nil))+"POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	all, err := io.ReadAll(w)
	return string(all), err
}

// A transport header must not name one of the proxy's own ports.
func TestInboundOwnPorts(t *testing.T) {
	m := newAuthority(t, anyClient)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) { c.Shutdown.EndpointEnabled = true })
	id := m.of(t, clientName)

	answer, err := headed(t, id, b.Inbound, netip.MustParseAddrPort(app.Listener.Addr().String()).Port(), "/")
	require.NoError(t, err)
	require.Contains(t, answer, "application")
	for name, addr := range map[string]string{"admin": b.Admin, "tap": b.Tap, "outbound": b.Addr, "inbound": b.Inbound} {
		t.Run(name, func(t *testing.T) {
			answer, _ := headed(t, id, b.Inbound, netip.MustParseAddrPort(addr).Port(), "/shutdown")
			require.Empty(t, answer)
		})
	}
	require.Equal(t, http.StatusOK, adminStatus(t, b, "/live"))
}

// proxied connects with a PROXY header for dst.
func proxied(t *testing.T, inbound, dst string) *wire {
	t.Helper()
	dstAddr := netip.MustParseAddrPort(dst)
	w := dialWire(t, inbound)
	say(w, fmt.Sprintf("PROXY TCP4 127.0.0.1 %v 1234 %d\r\n", dstAddr.Addr(), dstAddr.Port()))
	return w
}

// A PROXY header must not name one of the proxy's own ports.
func TestForwardOwnPorts(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
		c.Shutdown.EndpointEnabled = true
	})
	for name, addr := range map[string]string{"admin": tn.Admin, "tap": tn.Tap, "outbound": tn.Addr} {
		t.Run(name, func(t *testing.T) {
			first, _, _ := proxied(t, tn.Inbound, addr).ask(t, "POST /shutdown HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
			require.Contains(t, first, " 403 ")
		})
	}
	require.Equal(t, http.StatusOK, adminStatus(t, tn, "/live"))
}

// Outbound requests to the proxy's own ports are rejected.
func TestOutboundOwnPorts(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) { c.Shutdown.EndpointEnabled = true })
	for name, addr := range map[string]string{"admin": tn.Admin, "tap": tn.Tap, "inbound": tn.Inbound} {
		port := addr[strings.LastIndex(addr, ":"):]
		for situation, head := range map[string]string{
			"override":    "POST /shutdown HTTP/1.1\nHost: localhost\nl5d-dst-override: " + addr + "\nContent-Length: 0\n\n",
			"host":        "POST /shutdown HTTP/1.1\nHost: " + addr + "\nContent-Length: 0\n\n",
			"unspecified": "POST /shutdown HTTP/1.1\nHost: 0.0.0.0" + port + "\nContent-Length: 0\n\n",
			"mapped":      "POST /shutdown HTTP/1.1\nHost: [::ffff:127.0.0.1]" + port + "\nContent-Length: 0\n\n",
			"tunnel":      "CONNECT " + addr + " HTTP/1.1\nHost: " + addr + "\n\n",
		} {
			t.Run(name+" by "+situation, func(t *testing.T) {
				first, fields, _ := dialWire(t, tn.Addr).ask(t, head)
				require.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
				require.Contains(t, strings.Join(fields, "\n"), "is this proxy itself: loop")
			})
		}
	}
	require.Equal(t, http.StatusOK, adminStatus(t, tn, "/live"))
}

// In ingress mode, requests to loopback addresses are rejected.
func TestIngressRejectsLoopback(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Ingress, c.Outbound.Origin, c.Shutdown.EndpointEnabled = true, fixed("192.0.2.9:80"), true
	})
	for name, addr := range map[string]string{
		"admin": tn.Admin, "tap": tn.Tap, "inbound": tn.Inbound, "outbound": tn.Addr, "another server": backend(t, "local"),
	} {
		t.Run(name, func(t *testing.T) {
			first, _, _ := dialWire(t, tn.Addr).ask(t,
				"POST /shutdown HTTP/1.1\nHost: localhost\nl5d-dst-override: "+addr+"\nContent-Length: 0\n\n")
			require.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
		})
	}
	require.Equal(t, http.StatusOK, adminStatus(t, tn, "/live"))

	conn, err := grpc.NewClient("passthrough:///"+tn.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "l5d-dst-override", tn.Tap), soon)
	defer cancel()
	stream, err := tappb.NewTapClient(conn).Observe(ctx, &tappb.ObserveRequest{Limit: 1, Match: match.All()})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), err)
}

// INBOUND_IPS also applies to direct connections.
func TestInboundIPsDirectConnections(t *testing.T) {
	m := newAuthority(t, anyClient)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.IPs = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
	})
	answer, _ := headed(t, m.of(t, clientName), b.Inbound, netip.MustParseAddrPort(app.Listener.Addr().String()).Port(), "/")
	require.Empty(t, answer)
}

// Direct connections still work if a range of opaque ports contains the proxy's port.
func TestOpaquePortsExcludeTheProxy(t *testing.T) {
	m := newAuthority(t, anyClient)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.OpaquePorts = settings.Ports{{First: 1, Last: 65535}}
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
	})
	raw := proxied(t, b.Inbound, b.Inbound)
	answer, err := headedBy(t, raw, m.of(t, clientName), netip.MustParseAddrPort(app.Listener.Addr().String()).Port(), "/")
	require.NoError(t, err)
	require.Contains(t, answer, "application")
}

// The application receives client identities only from the proxy.
func TestForgedClientID(t *testing.T) {
	m := newAuthority(t, anyClient)
	app, got := application(t, okAnswer)
	appAddr := netip.MustParseAddrPort(app)
	b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
	})
	id := m.of(t, clientName)
	anonymous := id.Client(serverName, serverName)
	anonymous.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	secured := func(conn net.Conn, cfg *tls.Config, before ...byte) *wire {
		w := newWire(t, tls.Client(conn, cfg))
		say(w, string(before))
		return w
	}
	header := tcplayer.TransportHeader{Port: appAddr.Port(), Protocol: tcplayer.HTTP1}.AppendTo(nil)
	for name, tt := range map[string]struct {
		w    *wire
		sent []string
	}{
		"in clear":              {proxied(t, b.Inbound, app), nil},
		"TLS without a name":    {secured(proxied(t, b.Inbound, app), anonymous), nil},
		"TLS":                   {secured(proxied(t, b.Inbound, app), id.Client(serverName, serverName)), []string{"L5d-Client-Id: " + clientName}},
		"by the transport port": {secured(proxied(t, b.Inbound, b.Inbound), id.Client(serverName, serverName, tcplayer.TransportProtocol), header...), []string{"L5d-Client-Id: " + clientName}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, forged := range []string{
				"l5d-client-id: root\nL5D-Client-ID: admin\n", "l5d-client-id: root\nConnection: l5d-client-id\n", "Connection: keep-alive, L5d-Client-Id\n",
			} {
				first, _, _ := tt.w.ask(t, "GET / HTTP/1.1\nHost: web\n"+forged+"\n")
				require.Contains(t, first, " 200 ")
				fields := (<-got).fields
				require.Equal(t, append([]string{"Host: web"}, tt.sent...), fields)
			}
		})
	}
}

// A port's requirements do not permit what the default policy denies.
func TestPortRequirements(t *testing.T) {
	t.Parallel()
	m := newAuthority(t, anyClient)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	every := settings.Ports{{First: 1, Last: 65535}}
	for name, restrict := range map[string]func(*settings.Inbound){
		"TLS":                func(in *settings.Inbound) { in.RequireTLS, in.DefaultPolicy = every, settings.Deny },
		"identity":           func(in *settings.Inbound) { in.RequireIdentity, in.DefaultPolicy = every, settings.Deny },
		"TLS, authenticated": func(in *settings.Inbound) { in.RequireTLS, in.DefaultPolicy = every, settings.AllAuthenticated },
		"identity, of a cluster": func(in *settings.Inbound) {
			in.RequireIdentity, in.DefaultPolicy = every, settings.ClusterAuthenticated
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) {
				c.Settings.Inbound.Origin = fixed(app.Listener.Addr().String())
				restrict(&c.Settings.Inbound)
			})
			as := m.of(t, clientName).Client(serverName, serverName)
			if name == "TLS, authenticated" {
				as.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
			}
			conn, err := tls.Dial("tcp", b.Inbound, as)
			require.NoError(t, err)
			first, _, _ := newWire(t, conn).ask(t, "GET / HTTP/1.1\nHost: web\n\n")
			require.Contains(t, first, " 403 ")
		})
	}
}

// series returns how often the metrics contain text.
func series(t *testing.T, tn *testProxy, text string) int {
	t.Helper()
	return strings.Count(tn.scraped(t), text)
}

// hasSeries waits until the metrics contain prefix n times.
func hasSeries(t *testing.T, tn *testProxy, n int, prefix string) {
	t.Helper()
	tn.metrics(t, func(t require.TestingT, metrics string) { require.Equal(t, n, strings.Count(metrics, prefix), prefix) })
}

// Clients may send any number of names. Memory stays bounded, and requests succeed.
func TestForgedNameLimit(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	ctl := newScript(t)
	tn := newTestProxy(t, ctl.addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = fixed(app.Listener.Addr().String())
		c.Control.ProfileSuffixes = settings.Suffixes{"svc.cluster.local"}
		c.Control.ProfileInitial = 1 // the controller has no profiles
		c.Settings.Inbound.AuthorityLabels = true
	})
	w := dialWire(t, tn.Inbound)
	require.NoError(t, w.SetDeadline(time.Now().Add(5*time.Minute)))
	for i := range 1050 {
		first, _, body := w.ask(t, fmt.Sprintf("GET / HTTP/1.1\nHost: web\nl5d-dst-canonical: forged-%d.svc.cluster.local:80\n\n", i))
		require.Contains(t, first, " 200 ")
		require.Equal(t, "application", body)
	}
	tn.metrics(t, func(t require.TestingT, metrics string) {
		require.LessOrEqual(t, strings.Count(metrics, "\nrequest_total{"), 1001)
	})
}

// Names outside the profile suffixes are not cached.
func TestNamesWithoutProfile(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = fixed(app.Listener.Addr().String())
		c.Control.ProfileSuffixes = settings.Suffixes{"svc.cluster.local"}
	})
	w := dialWire(t, tn.Inbound)
	for i := range 20 {
		first, _, _ := w.ask(t, fmt.Sprintf("GET / HTTP/1.1\nHost: forged-%d.example\n\n", i))
		require.Contains(t, first, " 200 ")
	}
	for _, no := range []string{"a b", "x\x80y", strings.Repeat("x", 300), "web.svc.cluster.local:http", "web.svc.cluster.local:0x50"} {
		first, _, _ := w.ask(t, "GET / HTTP/1.1\nHost: web\nl5d-dst-canonical: "+no+"\n\n")
		require.Contains(t, first, " 200 ")
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, stack := get(t, c, "http://"+tn.Admin+"/stack")
	require.NotContains(t, stack, "forged-")
}

// A port scan does not affect the application, and the number of series stays bounded.
func TestScannedPortLimit(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "application") }))
	t.Cleanup(app.Close)
	tn := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
	})
	for i := range 1050 { // 127.1.x.y:1, without a listener
		dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 1)
		conn, err := net.Dial("tcp", tn.Inbound)
		require.NoError(t, err)
		say(conn, fmt.Sprintf("PROXY TCP4 127.0.0.1 %v 1234 1\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", dst.Addr()))
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), " 50") // 502, or 504 on a slow machine
		require.NotContains(t, strings.ToLower(string(answer)), "l5d-", "an unmeshed client gets no cause")
		require.NoError(t, conn.Close())
	}
	tn.metrics(t, func(t require.TestingT, metrics string) {
		require.LessOrEqual(t, strings.Count(metrics, "\ntcp_open_total{"), 2003) // a thousand of each peer, and the others
		for _, name := range []string{"inbound_http_authz_allow_total", "inbound_tcp_errors_total", "request_total"} {
			require.LessOrEqual(t, strings.Count(metrics, "\n"+name+"{"), 1001)
		}
	})
	first, _, body := proxied(t, tn.Inbound, app.Listener.Addr().String()).ask(t, "GET / HTTP/1.1\nHost: x\n\n")
	require.Contains(t, first, " 200 ")
	require.Equal(t, "application", body)
}
