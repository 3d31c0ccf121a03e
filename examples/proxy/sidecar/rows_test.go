package sidecar_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer/tcplayer"
)

// bothWays runs a test through one proxy's outbound side and through another's inbound side. All
// connections of each go to addr.
func bothWays(t *testing.T, addr string, test func(t *testing.T, proxy string), change ...func(*sidecar.Config)) {
	t.Helper()
	tn := newTestProxy(t, newScript(t).addr, append([]func(*sidecar.Config){func(c *sidecar.Config) {
		c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(addr), fixed(addr)
	}}, change...)...)
	t.Run("outbound", func(t *testing.T) { test(t, tn.Addr) })
	t.Run("inbound", func(t *testing.T) { test(t, tn.Inbound) })
}

func TestA1HTTP1BothSides(t *testing.T) {
	bothWays(t, backend(t, "app"), func(t *testing.T, proxy string) {
		first, _, body := dialWire(t, proxy).ask(t, "POST /a HTTP/1.1\nHost: web\nContent-Length: 5\n\nhello")
		require.Equal(t, "HTTP/1.1 200 OK", first)
		require.Equal(t, "app web /a hello", body)
	})
}

// The address is not a service (A3), and the protocol is not HTTP.
func TestA2AndA3BytesBothSides(t *testing.T) {
	bothWays(t, shouting(t, ""), func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		say(w, "\x00 more than 14 bytes of no HTTP")
		w.hear(t, strings.ToUpper("\x00 more than 14 bytes of no HTTP"))
		converse(t, w)
	})
}

// Without detection, the server may speak first.
func TestA4AndA5ServerSpeaksFirst(t *testing.T) {
	up := shouting(t, "220 hello")
	port := netip.MustParseAddrPort(up).Port()
	bothWays(t, up, func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		w.hear(t, "220 hello")
		converse(t, w)
	}, func(c *sidecar.Config) {
		only := settings.Ports{{First: port, Last: port}}
		c.Outbound.OpaquePorts, c.Settings.Inbound.OpaquePorts = only, only
	})
}

// TLS for the application is forwarded unchanged in both directions.
func TestA4ApplicationTLS(t *testing.T) {
	a := newAuthority(t, anyClient)
	const app = "app.cluster.local"
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		secure := tls.Server(conn, a.of(t, app).Server())
		say(secure, "220 hello")
		_, _ = io.Copy(io.Discard, secure)
	})
	tn := newTestProxy(t, newScript(t).addr, a.identified(t, serverName), func(c *sidecar.Config) {
		c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(up), fixed(up)
	})
	for _, proxy := range []string{tn.Addr, tn.Inbound} {
		conn, err := net.Dial("tcp", proxy)
		require.NoError(t, err)
		newWire(t, tls.Client(conn, a.of(t, clientName).Client(app, app))).hear(t, "220 hello")
	}
	counted(t, tn, "tcp_open_total", 1, `direction="inbound"`, `peer="src"`, `target_addr="`+up+`"`, `tls="opaque"`)
}

// When the client's connection is closed, so is the server's, even while it is idle.
func TestA6ServerCloseAfterClient(t *testing.T) {
	ended := make(chan struct{}, 2)
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		_, _ = io.Copy(conn, conn)
		ended <- struct{}{}
	})
	bothWays(t, up, func(t *testing.T, proxy string) {
		w := dialWire(t, proxy)
		say(w, "\x00 more than 14 bytes of no HTTP")
		w.hear(t, "\x00 more than 14 bytes of no HTTP")
		require.NoError(t, w.Close())
		select {
		case <-ended:
		case <-time.After(soon):
			require.Fail(t, "the server's connection is open")
		}
	})
}

func TestA7OutboundLoop(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr)
	_, port, err := net.SplitHostPort(tn.Addr)
	require.NoError(t, err)
	for _, host := range []string{tn.Addr, "0.0.0.0:" + port, "[::]:" + port} {
		first, fields, _ := dialWire(t, tn.Addr).ask(t, "GET / HTTP/1.1\nHost: "+host+"\n\n")
		require.Equal(t, "HTTP/1.1 502 Bad Gateway", first, "%s: %v", host, fields)
		require.Contains(t, strings.Join(fields, "\n"), "loop", host)
	}
}

// Inbound requests to the proxy's own ports get 403.
func TestA7InboundLoop(t *testing.T) {
	m := newAuthority(t, anyClient)
	b := newTestProxy(t, newScript(t).addr, m.identified(t, serverName), func(c *sidecar.Config) {
		c.Settings.Inbound.Origin = settings.Origin{Kind: settings.ProxyProtocol}
	})
	header := tcplayer.TransportHeader{Port: netip.MustParseAddrPort(b.Inbound).Port(), Protocol: tcplayer.HTTP1}
	headed := newWire(t, tls.Client(proxied(t, b.Inbound, b.Inbound), m.of(t, clientName).Client(serverName, serverName, tcplayer.TransportProtocol)))
	say(headed, string(header.AppendTo(nil)))
	for name, w := range map[string]*wire{"header": headed, "PROXY": proxied(t, b.Inbound, b.Addr)} {
		t.Run(name, func(t *testing.T) {
			first, _, _ := w.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
			require.Equal(t, "HTTP/1.1 403 Forbidden", first)
		})
	}
}
