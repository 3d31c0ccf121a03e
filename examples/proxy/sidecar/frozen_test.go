package sidecar_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
)

// freezable relays connections to addr until frozen is set. After that it discards all bytes, so
// that connections stay open.
func freezable(t testing.TB, addr string, frozen *atomic.Bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	relay := func(from, to net.Conn) {
		defer to.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if !frozen.Load() {
				_, _ = to.Write(buf[:n])
			}
		}
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				client.Close()
				continue
			}
			go relay(client, server)
			go relay(server, client)
		}
	}()
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// The controller configures keep-alive PINGs for connections to an endpoint. Requests to a frozen
// endpoint then fail, even in HTTP/1, because the endpoint supports HTTP/2.
func TestKeepAliveDetectsFrozenEndpoint(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(testing.TB, string) *http.Client{"HTTP1": h1Client, "HTTP2": h2Client} {
		t.Run(name, func(t *testing.T) {
			app := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			app.Config.Protocols = new(http.Protocols)
			app.Config.Protocols.SetUnencryptedHTTP2(true)
			app.Start()
			defer app.Close()
			var frozen atomic.Bool
			addr := freezable(t, app.Listener.Addr().String(), &frozen)

			m := &mesh{ctl: newScript(t)}
			m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
			tn := newTestProxy(t, m.ctl.addr, toService)
			m.answer(t, endpointAt(addr, speaksH2, func(e *destination.WeightedAddr) {
				e.Http2 = &destination.Http2ClientParams{KeepAlive: &destination.Http2ClientParams_KeepAlive{
					Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), WhileIdle: true,
				}}
			}))
			c := client(t, tn.Addr)
			c.Timeout = soon
			status := func() (int, error) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+tn.Addr, http.NoBody)
				require.NoError(t, err)
				req.Host = "web.example"
				rsp, err := c.Do(req)
				if err != nil {
					return 0, err
				}
				defer rsp.Body.Close()
				_, err = io.Copy(io.Discard, rsp.Body)
				return rsp.StatusCode, err
			}
			require.Eventually(t, func() bool { // a loaded machine may be slower than the keep-alive
				code, err := status()
				return err == nil && code == http.StatusOK
			}, soon, tick)

			frozen.Store(true)
			code, err := status()
			require.NoError(t, err, "it hangs")
			require.Contains(t, []int{http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusServiceUnavailable}, code)
		})
	}
}
