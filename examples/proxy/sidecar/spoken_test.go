package sidecar_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// believing is an endpoint's proxy with a direct port, like linkerd's. It uses the protocol in the
// transport header without detecting it, and reports the protocol in each header.
func believing(t testing.TB, m *mesh, app http.Handler) (addr string, announced <-chan tcplayer.Protocol) {
	t.Helper()
	out := make(chan tcplayer.Protocol, 10)
	server := httplayer.NewServer(httplayer.FromHandler(app), httplayer.WithConnect())
	spoken := func(want tcplayer.Protocol) tcplayer.Server {
		protocols := tcplayer.Protocols{HTTP1: server}
		if want == tcplayer.HTTP2 {
			protocols = tcplayer.Protocols{HTTP2: server}
		}
		return tcplayer.Detect(protocols) // resets all other protocols
	}
	h1, h2 := spoken(tcplayer.HTTP1), spoken(tcplayer.HTTP2)
	headed := layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		select {
		case out <- h.Protocol:
		default: // as often as is asked for
		}
		switch h.Protocol {
		case tcplayer.HTTP1:
			return h1.Call(ctx, conn)
		case tcplayer.HTTP2:
			return h2.Call(ctx, conn)
		}
		return server.Call(ctx, conn) // bytes for the application
	})
	proxy := tcplayer.DetectTLS(m.of(t, serverName).Server(tcplayer.TransportProtocol), tcplayer.MatchServerName(serverName),
		tcplayer.TLSServers{Terminate: tcplayer.DetectTransport(tcplayer.TransportServers{Header: headed})})
	return conntest.Serve(t, func(_ int, conn net.Conn) { _, _ = proxy.Call(t.Context(), conn) }), out
}

// upgrading echoes in upper case after an upgrade and in a tunnel, and responds with ok to other
// requests.
func upgrading(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect && r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(w, "ok")
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	if r.Method == http.MethodConnect {
		say(conn, "HTTP/1.1 200 OK\r\n\r\n")
	} else {
		say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n")
	}
	shout(conn)
}

// The transport header contains the connection's protocol. With the hint HTTP/2, HTTP/1 requests
// are sent over HTTP/2. Upgrades and tunnels use HTTP/1.
func TestTransportHeaderHasProtocol(t *testing.T) {
	t.Parallel()
	const (
		plain   = "GET / HTTP/1.1\nHost: web\n\n"
		upgrade = "GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: shout\n\n"
		connect = "CONNECT web:443 HTTP/1.1\nHost: web:443\n\n"
	)
	only := func(p tcplayer.Protocol) map[tcplayer.Protocol]bool { return map[tcplayer.Protocol]bool{p: true} }
	both := map[tcplayer.Protocol]bool{tcplayer.HTTP1: true, tcplayer.HTTP2: true}
	for name, tt := range map[string]struct {
		hints     []func(*destination.WeightedAddr)
		asked     []string // "" is an HTTP/2 request
		announced map[tcplayer.Protocol]bool
	}{
		"HTTP/1 to HTTP/2":  {hintedBy(speaksH2), []string{plain, plain}, only(tcplayer.HTTP2)},
		"upgrade to HTTP/2": {hintedBy(speaksH2), []string{upgrade}, only(tcplayer.HTTP1)},
		"tunnel to HTTP/2":  {hintedBy(speaksH2), []string{connect}, only(tcplayer.HTTP1)},
		"all to HTTP/2":     {hintedBy(speaksH2), []string{plain, upgrade, "", plain}, both},
		"HTTP/2":            {hintedBy(speaksH2), []string{""}, only(tcplayer.HTTP2)},
		"not hinted":        {nil, []string{plain, "", plain, upgrade}, both},
		"not looked at":     {hintedBy(isOpaque), []string{plain, ""}, only(tcplayer.Opaque)},
	} {
		t.Run(name, func(t *testing.T) {
			m := meshOf(t, "")
			proxy, announced := believing(t, m, http.HandlerFunc(upgrading))
			m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
			m.answer(t, endpointAt("127.0.0.1:1", append(tt.hints, proves(serverName), direct(proxy))...))
			kept, h2 := dialWire(t, m.a.Addr), h2Client(t, m.a.Addr)
			h2.Timeout = soon
			for _, asked := range tt.asked {
				switch asked {
				case "":
					status, body := get(t, h2, "http://web.example/")
					require.Equal(t, http.StatusOK, status)
					require.Equal(t, "ok", body)
				case plain:
					first, _, body := kept.ask(t, asked)
					require.Equal(t, "HTTP/1.1 200 OK", first)
					require.Equal(t, "ok", body)
				default:
					w := dialWire(t, m.a.Addr)
					first, _, _ := w.ask(t, asked)
					require.Contains(t, []string{"HTTP/1.1 101 Switching Protocols", "HTTP/1.1 200 OK"}, first)
					converse(t, w)
				}
			}
			heard := map[tcplayer.Protocol]bool{}
			for len(announced) > 0 {
				heard[<-announced] = true
			}
			assert.Equal(t, tt.announced, heard)
		})
	}
}

func hintedBy(hints ...func(*destination.WeightedAddr)) []func(*destination.WeightedAddr) {
	return hints
}
