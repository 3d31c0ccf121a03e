package sidecar_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// goodbyes detects GOAWAY frames in what is read from a connection.
type goodbyes struct {
	net.Conn
	head []byte
	skip int
	seen chan struct{} // room for all that come
}

func (g *goodbyes) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if g.skip > 0 {
			k := min(g.skip, len(rest))
			g.skip, rest = g.skip-k, rest[k:]
			continue
		}
		k := min(9-len(g.head), len(rest))
		g.head, rest = append(g.head, rest[:k]...), rest[k:]
		if len(g.head) == 9 {
			g.skip = int(g.head[0])<<16 | int(g.head[1])<<8 | int(g.head[2])
			if http2.FrameType(g.head[3]) == http2.FrameGoAway {
				g.seen <- struct{}{}
			}
			g.head = g.head[:0]
		}
	}
	return n, err
}

// held is an application that begins responses to /held immediately, and ends them when let is
// called. All other responses end immediately.
func held(t testing.TB) (addr string, began <-chan struct{}, let func()) {
	t.Helper()
	came, end := make(chan struct{}, 100), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		say(w, "begun ")
		if r.URL.Path == "/held" {
			_ = http.NewResponseController(w).Flush()
			came <- struct{}{}
			<-end
		}
		say(w, "done "+string(body))
	}))
	let = sync.OnceFunc(func() { close(end) })
	t.Cleanup(srv.Close)
	t.Cleanup(let)
	return srv.Listener.Addr().String(), came, let
}

// HTTP/2 streams that are open when draining starts are finished. The client receives GOAWAY.
func TestF1DrainHTTP2(t *testing.T) {
	for name, side := range map[string]func(*sidecar.Proxy) string{
		"outbound": func(p *sidecar.Proxy) string { return p.Addr }, "inbound": func(p *sidecar.Proxy) string { return p.Inbound },
	} {
		t.Run(name, func(t *testing.T) {
			const streams = 12
			up, began, let := held(t)
			p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
				c.Outbound.Origin, c.Settings.Inbound.Origin = fixed(up), fixed(up)
				c.Shutdown.Grace = 2 * soon
			})
			goAways := make(chan struct{}, 10)
			tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, side(p))
				return &goodbyes{Conn: conn, seen: goAways}, err
			}}
			tr.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(tr.CloseIdleConnections)
			c := &http.Client{Transport: tr}
			answers := make(chan string, streams)
			for range streams {
				go func() {
					rsp, err := c.Post("http://web.example/held", "text/plain", strings.NewReader("hello"))
					if err != nil {
						answers <- err.Error()
						return
					}
					defer rsp.Body.Close()
					body, err := io.ReadAll(rsp.Body)
					answers <- string(body) + errorText(err)
				}()
			}
			for range streams {
				select {
				case <-began:
				case answer := <-answers:
					require.Fail(t, "it did not begin", answer)
				case <-time.After(soon):
					require.Fail(t, "it does not begin")
				}
			}
			stop()
			comes(t, goAways, "a GOAWAY")
			let()
			for range streams {
				require.Equal(t, "begun done hello", comes(t, answers, "an answer"))
			}
			require.NoError(t, comes(t, ended, "the end"))
		})
	}
}

// comes returns the next value from a channel, or fails the test after a timeout.
func comes[T any](t testing.TB, values <-chan T, event string) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(soon):
	}
	require.Fail(t, "it does not come: "+event)
	return *new(T)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// An idle HTTP/1 connection is closed, and a busy one after its response.
func TestF2DrainHTTP1(t *testing.T) {
	t.Parallel()
	up, began, let := held(t)
	p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Origin = fixed(up)
		c.Shutdown.Grace = 2 * soon
	})
	idle, active := dialWire(t, p.Addr), dialWire(t, p.Addr)
	first, _, _ := idle.ask(t, "GET / HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	say(active, "GET /held HTTP/1.1\r\nHost: web\r\n\r\n")
	comes(t, began, "the request that is held")
	stop()
	idle.over(t)
	select {
	case err := <-ended:
		require.Fail(t, "it has ended", "%v", err)
	default:
	}
	let()
	rsp, err := http.ReadResponse(active.in, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "begun done ", string(body))
	active.over(t)
	require.NoError(t, comes(t, ended, "the end"))
}

// While draining, bytes are still forwarded in both directions, and the process waits.
func TestF3DrainTCP(t *testing.T) {
	up := shouting(t, "")
	p, stop, ended := run(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Origin = fixed(up)
		c.Shutdown.Grace = 2 * soon
	})
	w := dialWire(t, p.Addr)
	say(w, "\x00 more than 14 bytes of no HTTP")
	w.hear(t, strings.ToUpper("\x00 more than 14 bytes of no HTTP"))
	stop()
	require.Eventually(t, func() bool { // nothing more is accepted
		conn, err := net.Dial("tcp", p.Addr)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, soon, tick)
	say(w, "still")
	w.hear(t, "STILL")
	select {
	case err := <-ended:
		require.Fail(t, "it has ended", "%v", err)
	default:
	}
	converse(t, w)
	require.NoError(t, comes(t, ended, "the end"))
}
