package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// An unusable 101 is a failure of the endpoint and does not leak a connection.
func TestUpgradeUnusable101(t *testing.T) {
	const plain = "GET / HTTP/1.1\nHost: web\n\n"
	for name, tt := range map[string]struct{ head, answer string }{
		"unasked":      {plain, "Connection: Upgrade\r\nUpgrade: other\r\n"},
		"to nothing":   {plain, ""},
		"asked, other": {upgradeHead, "Connection: Upgrade\r\nUpgrade: other\r\n"},
		"asked, bad":   {upgradeHead, "Connection: Upgrade\r\nUpgrade: sh\xf6ut\r\n"},
		"asked, none":  {upgradeHead, ""},
		"to CONNECT":   {connectHead, "Connection: Upgrade\r\nUpgrade: other\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := rawServer(t, func(_ int, c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					say(c, "HTTP/1.1 101 Switching Protocols\r\n"+tt.answer+"\r\n")
					pipe(io.Discard, c)
				}
			})
			e, d := endpoint(t, addr, WithMaxConns(1)), layer.NewDrainer()
			front := serve(t, Handler(NewStack().Drain(d).Service(e), WithConnect()))
			for range 3 {
				c := wireTo(t, front)
				first, _, _ := c.ask(tt.head)
				assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
				require.Eventually(t, func() bool { return e.Describe().State.Get("in_flight") == 0 }, patience, time.Millisecond)
				assert.Zero(t, d.InFlight())
			}
		})
	}
}

// The end of the context frees an upgraded connection, even if its body is not closed.
func TestUpgradeContextFreesConnection(t *testing.T) {
	for name, tt := range map[string]struct{ head, answer string }{
		"connect": {connectHead, established}, "upgrade": {upgradeHead, switching},
	} {
		t.Run(name, func(t *testing.T) {
			up, _ := tunnelled(t, tt.answer)
			e := endpoint(t, up, WithMaxConns(1))
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(tt.head, "\n", "\r\n"))))
				require.NoError(t, err)
				rsp, err := e.Call(ctx, req)
				require.NoError(t, err)
				assert.Equal(t, 1, e.Describe().State.Get("in_flight"))
				cancel()
				require.Eventually(t, func() bool { return e.Describe().State.Get("in_flight") == 0 }, patience, time.Millisecond)
				_ = rsp.Body.Close() // counts for nothing
				assert.Equal(t, 0, e.Describe().State.Get("connections"))
			}
		})
	}
}

// A 101 without a connection as its body, or for a client without a connection, is closed.
func TestUpgradeUntaken101Closed(t *testing.T) {
	both := &upgradedBody{Reader: strings.NewReader(""), closed: make(chan struct{})}
	closed := make(chan struct{})
	for name, tt := range map[string]struct {
		body   io.ReadCloser
		closed chan struct{}
		status int
	}{
		"body":   {onClose(sync.OnceFunc(func() { close(closed) })), closed, http.StatusBadGateway},
		"client": {both, both.closed, http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			h := Handler(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: http.StatusSwitchingProtocols, Body: tt.body, Request: r,
					Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}},
				}, nil
			}))
			r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "x")
			h.ServeHTTP(w, r)
			assert.Equal(t, tt.status, w.Code)
			select {
			case <-tt.closed:
			case <-time.After(patience):
				require.Fail(t, "it is still open")
			}
		})
	}
}

// An upgrade to an unprintable protocol is an error of the client.
func TestUpgradeUnprintable(t *testing.T) {
	answers := Middleware(func(Service) Service {
		return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
			return Editor{}.NewResponse(r, layer.DirectResponse{Status: http.StatusForbidden}), nil
		})
	})
	for name, h := range map[string]http.Handler{
		"handler": Handler(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) {
			t.Error("it went through")
			return nil, io.EOF
		})),
		"middleware": answers(http.NotFoundHandler()),
	} {
		t.Run(name, func(t *testing.T) {
			c := wireTo(t, serve(t, h))
			first, _, _ := c.ask("GET / HTTP/1.1\nHost: web\nConnection: Upgrade\nUpgrade: sh\xf6ut\n\n")
			assert.Equal(t, "HTTP/1.1 400 Bad Request", first)
			c.over()
		})
	}
}
