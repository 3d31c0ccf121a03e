package httplayer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// echoRaw responds to each stream with the digest of its body, but only calls refuse for a stream for which that
// returns true.
func echoRaw(c *rawH2, refuse func(stream uint32) bool) {
	c.settings(100)
	bodies, refused := make(map[uint32]string), make(map[uint32]bool)
	for {
		kind, flags, stream, payload, err := c.next()
		if err != nil {
			return
		}
		if kind != frameHeaders && kind != frameData {
			continue
		}
		if _, ok := bodies[stream]; !ok && !refused[stream] {
			refused[stream], bodies[stream] = refuse(stream), ""
		}
		if kind == frameData {
			bodies[stream] += string(payload)
			if len(payload) > 0 {
				c.frame(frameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(len(payload))))
			}
		}
		if flags&flagEndStream != 0 && !refused[stream] {
			c.respond(stream, digest(bodies[stream]))
		}
	}
}

func digest(body string) string { return fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))) }

// twoParts is a body that a client sends in two parts. The second part follows when next is closed.
type twoParts struct {
	parts []string
	next  chan struct{}
	read  atomic.Int32
}

func (b *twoParts) Read(p []byte) (int, error) {
	i := int(b.read.Add(1)) - 1
	if i == 1 {
		<-b.next
	}
	if i >= len(b.parts) {
		return 0, io.EOF
	}
	return copy(p, b.parts[i]), nil
}

func (*twoParts) Close() error { return nil }

// A request that the server has not processed is sent again, with its body, whatever its method
// (RFC 9113, section 8.7).
func TestEndpointRepeatsUnprocessed(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 3000) // less than the window of a stream
	refusals := map[string]func(c *rawH2, stream uint32){
		"REFUSED_STREAM": func(c *rawH2, s uint32) { c.reset(s, message.CodeRefusedStream) },
		"GOAWAY":         func(c *rawH2, _ uint32) { c.goAway(0) },
		"GOAWAY with an error": func(c *rawH2, _ uint32) {
			c.frame(frameGoAway, 0, 0, binary.BigEndian.AppendUint32(make([]byte, 4), message.CodeEnhanceYourCalm))
		},
		"GOAWAY, then the end": func(c *rawH2, _ uint32) { c.goAway(0); c.Close() },
	}
	bodies := map[string]func(next chan struct{}) (*http.Request, string){
		"no body": func(chan struct{}) (*http.Request, string) { return request(t, "POST", "http://web/", ""), "" },
		"in memory": func(chan struct{}) (*http.Request, string) {
			return request(t, "POST", "http://web/", "hello"), "hello"
		},
		"long": func(chan struct{}) (*http.Request, string) { return request(t, "POST", "http://web/", long), long },
		"with GetBody": func(chan struct{}) (*http.Request, string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", strings.NewReader(long))
			require.NoError(t, err)
			return req, long
		},
		"while it arrives": func(next chan struct{}) (*http.Request, string) {
			req := request(t, "POST", "http://web/", "")
			req.Body, req.ContentLength = &twoParts{parts: []string{"first", "second"}, next: next}, -1
			return req, "firstsecond"
		},
		"with trailers": func(chan struct{}) (*http.Request, string) {
			req := request(t, "POST", "http://web/", "hello")
			req.Trailer = http.Header{"X-Sum": {"1"}}
			req.ContentLength = -1
			return req, "hello"
		},
	}
	for how, refuse := range refusals {
		for what, body := range bodies {
			t.Run(how+", "+what, func(t *testing.T) {
				next := make(chan struct{})
				var refused atomic.Int32
				addr := conntest.Serve(t, func(_ int, conn net.Conn) {
					c := newRawH2(conn)
					if c.preface() != nil {
						return
					}
					echoRaw(c, func(stream uint32) bool {
						n := refused.Add(1)
						if n <= 2 {
							refuse(c, stream)
						}
						if n == 2 {
							close(next)
						}
						return n <= 2
					})
				})
				req, want := body(next)
				rsp, err := endpoint(t, addr, WithHTTP2()).Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, digest(want), read(t, rsp))
				assert.EqualValues(t, 3, refused.Load())
			})
		}
	}
}

// A server that never processes a request makes the Endpoint reject it after a few attempts, so that
// another endpoint can have it.
func TestEndpointRejectsUnprocessed(t *testing.T) {
	for how, refuse := range map[string]func(c *rawH2, stream uint32){
		"REFUSED_STREAM": func(c *rawH2, s uint32) { c.reset(s, message.CodeRefusedStream) },
		"GOAWAY":         func(c *rawH2, _ uint32) { c.goAway(0) },
	} {
		t.Run(how, func(t *testing.T) {
			var refused atomic.Int32
			addr := conntest.Serve(t, func(_ int, conn net.Conn) {
				if c := newRawH2(conn); c.preface() == nil {
					echoRaw(c, func(stream uint32) bool { refused.Add(1); refuse(c, stream); return true })
				}
			})
			req, body := withBody(t, "hello")
			req.Header.Set("Expect", "100-continue") // the body is not read
			_, err := endpoint(t, addr, WithHTTP2()).Call(t.Context(), req)
			require.ErrorIs(t, err, layer.ErrNotReady)
			assert.EqualValues(t, maxFruitless, refused.Load())
			assert.Zero(t, body.reads.Load()+body.closes.Load())
		})
	}
}

// A server that ends each connection after ten requests costs none of many concurrent requests.
func TestEndpointGoAwayCostsNoRequest(t *testing.T) {
	const perConn, workers, each = 10, 16, 20
	addr := conntest.Serve(t, func(_ int, conn net.Conn) {
		c := newRawH2(conn)
		if c.preface() != nil {
			return
		}
		last := uint32(0)
		echoRaw(c, func(stream uint32) bool {
			if stream >= 2*perConn {
				return true // as nginx, which ignores streams after its GOAWAY
			}
			if last = stream; stream == 2*perConn-1 {
				c.goAway(last)
			}
			return false
		})
	})
	e := endpoint(t, addr, WithHTTP2())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", io.NopCloser(strings.NewReader("hello")))
				if !assert.NoError(t, err) {
					return
				}
				rsp, err := e.Call(t.Context(), req)
				if assert.NoError(t, err) {
					assert.Equal(t, digest("hello"), read(t, rsp))
				}
			}
		})
	}
	wg.Wait()
}

// A reused connection of HTTP/1.1 that the server has closed costs a request only if its method is
// not idempotent and bytes of it were sent.
func TestEndpointRepeatsOnReusedConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		method, body string
		again        bool
	}{
		"GET":                  {http.MethodGet, "", true},
		"PUT with a body":      {http.MethodPut, "hello", true},
		"PUT with a long body": {http.MethodPut, strings.Repeat("x", repeatLimit+1), false},
		"POST":                 {http.MethodPost, "", false},
		"POST with a body":     {http.MethodPost, "hello", false},
	} {
		t.Run(name, func(t *testing.T) {
			// The server takes a second request on its first connection, and closes that.
			var got atomic.Int32
			addr := conntest.Serve(t, func(n int, conn net.Conn) {
				in := bufio.NewReader(conn)
				for i := 0; ; i++ {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return
					}
					if got.Add(1); n == 0 && i == 1 {
						return
					}
					sayf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			})
			e := endpoint(t, addr)
			require.NoError(t, get(t.Context(), e, "/"))
			rsp, err := e.Call(t.Context(), request(t, tt.method, "http://web/", tt.body))
			if tt.again {
				require.NoError(t, err)
				assert.Equal(t, tt.body, read(t, rsp))
				assert.EqualValues(t, 3, got.Load())
				return
			}
			require.Error(t, err)
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			assert.EqualValues(t, 2, got.Load())
		})
	}
}

// nginx ends a connection of HTTP/2 by GOAWAY, and one of HTTP/1.1 by Connection: close, after
// keepalive_requests.
func TestEndpointBehindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("no nginx")
	}
	for name, protocol := range map[string]EndpointOption{"HTTP/1.1": WithHTTP1(), "HTTP/2": WithHTTP2()} {
		t.Run(name, func(t *testing.T) {
			addr := startNginx(t, nginx, map[string]string{"HTTP/2": " http2"}[name])
			e := endpoint(t, addr, protocol)
			front := servingBy(t, Handler(e, WithLogger(nil)))
			errs := make(chan error, 800)
			var wg sync.WaitGroup
			for worker := range 16 {
				c := client(t, worker%2 == 1)
				wg.Go(func() {
					for range 50 {
						errs <- postTo(c, "http://"+front.addr+"/")
					}
				})
			}
			wg.Wait()
			close(errs)
			failed := 0
			for err := range errs {
				if err != nil {
					failed++
					t.Log(err)
				}
			}
			assert.Zero(t, failed, "of 800 requests")
		})
	}
}

func postTo(c *http.Client, url string) error {
	rsp, err := c.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", 1000)))
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	if err == nil && (rsp.StatusCode != http.StatusOK || string(body) != "ok") {
		err = fmt.Errorf("%s: %q", rsp.Status, body)
	}
	return err
}

// startNginx starts nginx, with the argument option of its directive listen, and waits until it listens.
func startNginx(t *testing.T, nginx, option string) (addr string) {
	t.Helper()
	dir, addr := t.TempDir(), freeport.Addr(t)
	conf := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 512; }
http {
	access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	server { listen %[2]s%[3]s; keepalive_requests 10; location / { return 200 ok; } }
}
`, dir, addr, option), 0o600))
	cmd := exec.Command(nginx, "-c", conf, "-p", dir)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond)
	return addr
}

// Requests that wait to be sent when a connection of HTTP/2 ends without GOAWAY are sent again, whatever
// their method, because the server has not received them.
func TestEndpointRepeatsUnsent(t *testing.T) {
	const requests = 20
	stop := make(chan struct{})
	var dials atomic.Int32
	dial := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe() // a Write waits until the server reads
		last := dials.Add(1) == 2
		go func() {
			defer far.Close()
			c := newRawH2(far)
			if c.preface() != nil {
				return
			}
			if last {
				echoRaw(c, func(uint32) bool { return false })
				return
			}
			c.settings(100)
			c.respond(c.request(), "first")
			<-stop
		}()
		return near, nil
	}
	e := endpoint(t, "web:80", WithHTTP2(), WithDialContext(dial))
	rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.NoError(t, err)
	require.Equal(t, "first", read(t, rsp))
	var calls sync.WaitGroup
	for i := range requests {
		body := strings.Repeat("x", i)
		calls.Go(func() {
			rsp, err := e.Call(t.Context(), request(t, "POST", "http://web/", body))
			if assert.NoError(t, err) {
				assert.Equal(t, digest(body), read(t, rsp))
			}
		})
	}
	require.Eventually(t, func() bool { _, _, inFlight := e.h2.usage(); return inFlight == requests }, patience, time.Millisecond)
	close(stop)
	calls.Wait()
	assert.EqualValues(t, 2, dials.Load())
}

// onRejection sends a request to each Service until one does not reject it, as a balancer does.
func onRejection(services ...Service) Service {
	return serviceFunc(func(ctx context.Context, req *http.Request) (rsp *http.Response, err error) {
		for _, s := range services {
			if rsp, err = s.Call(ctx, req); err == nil || !errors.Is(err, layer.ErrNotReady) {
				return rsp, err
			}
		}
		return rsp, err
	})
}

// A request that an endpoint does not process, although it has read the body, reaches another endpoint with
// its whole body, whatever its method.
func TestEndpointHandsBack(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 4000)
	refusals := map[string]func(c *rawH2, stream uint32){
		"REFUSED_STREAM": func(c *rawH2, s uint32) { c.reset(s, message.CodeRefusedStream) },
		"GOAWAY":         func(c *rawH2, _ uint32) { c.goAway(0) },
	}
	bodies := map[string]func(next chan struct{}) (io.Reader, string){
		"short":            func(chan struct{}) (io.Reader, string) { return io.MultiReader(strings.NewReader("hello")), "hello" },
		"long":             func(chan struct{}) (io.Reader, string) { return io.MultiReader(strings.NewReader(long)), long },
		"too long":         func(chan struct{}) (io.Reader, string) { return io.MultiReader(strings.NewReader(long + long)), "" },
		"with GetBody":     func(chan struct{}) (io.Reader, string) { return strings.NewReader(long + long), long + long },
		"while it arrives": func(next chan struct{}) (io.Reader, string) { return partsOf(next, "first", "second"), "firstsecond" },
	}
	entries := map[string]func(t *testing.T, svc Service) (http.RoundTripper, string){
		"RoundTripper": func(_ *testing.T, svc Service) (http.RoundTripper, string) { return RoundTripper(svc), "http://web" },
		"Server, HTTP/1.1": func(t *testing.T, svc Service) (http.RoundTripper, string) {
			return client(t, false).Transport, "http://" + servingBy(t, Handler(svc, WithLogger(nil))).addr
		},
		"Server, HTTP/2": func(t *testing.T, svc Service) (http.RoundTripper, string) {
			return client(t, true).Transport, "http://" + servingBy(t, Handler(svc, WithLogger(nil))).addr
		},
		"Retry": func(_ *testing.T, svc Service) (http.RoundTripper, string) {
			retry := RetryPolicy{MaxAttempts: 2, CanRetry: func(*http.Request) bool { return true }}
			return RoundTripper(NewStack().Retry(retry).Service(svc)), "http://web"
		},
	}
	for how, refuse := range refusals {
		for what, body := range bodies {
			for where, entry := range entries {
				if what == "with GetBody" && where != "RoundTripper" {
					continue // the Endpoint does not get it
				}
				t.Run(how+", "+what+", "+where, func(t *testing.T) {
					next, unlimited := make(chan struct{}), []byte{0, 0x4, 0x7f, 0xff, 0xff, 0xff}
					var refused atomic.Int32
					refusing := conntest.Serve(t, func(_ int, conn net.Conn) {
						c := newRawH2(conn)
						if c.preface() != nil {
							return
						}
						c.frame(frameSettings, 0, 0, unlimited)
						echoRaw(c, func(stream uint32) bool {
							n := refused.Add(1)
							refuse(c, stream)
							if n == maxFruitless && what == "while it arrives" {
								close(next)
							}
							return true
						})
					})
					serving := conntest.Serve(t, func(_ int, conn net.Conn) {
						if c := newRawH2(conn); c.preface() == nil {
							c.frame(frameSettings, 0, 0, unlimited)
							echoRaw(c, func(uint32) bool { return false })
						}
					})
					svc := onRejection(endpoint(t, refusing, WithHTTP2()), endpoint(t, serving, WithHTTP2()))
					by, url := entry(t, svc)
					content, want := body(next)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/", content)
					require.NoError(t, err)
					rsp, err := by.RoundTrip(req)
					switch {
					case want != "" || err == nil && rsp.StatusCode == http.StatusOK:
						require.NoError(t, err)
						if got := read(t, rsp); want != "" || got != digest(long+long) { // the refusal may be early
							assert.Equal(t, digest(want), got)
						}
						assert.EqualValues(t, maxFruitless, refused.Load())
					case err != nil:
						assert.NotErrorIs(t, err, layer.ErrNotReady)
					default:
						assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
						rsp.Body.Close()
					}
				})
			}
		}
	}
}

func partsOf(next chan struct{}, parts ...string) io.Reader {
	return &twoParts{parts: parts, next: next}
}

// A request for which no other connection can be made, after its server has ended the first one, is
// rejected, although its body was read.
func TestEndpointHandsBackWithoutConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveRaw(t, l, func(_ int, conn net.Conn) {
		l.Close()
		if c := newRawH2(conn); c.preface() == nil {
			c.settings(100)
			for kind, flags := byte(0), byte(0); kind != frameData || flags&flagEndStream == 0; {
				if kind, flags, _, _, err = c.next(); err != nil {
					return
				}
			}
			c.goAway(0)
			c.drain()
		}
	})
	gone := endpoint(t, l.Addr().String(), WithHTTP2())
	back := endpoint(t, serve(t, http.HandlerFunc(shapes)))
	req := request(t, "POST", "http://web/echo", "hello")
	rsp, err := RoundTripper(onRejection(gone, back)).RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "hello", read(t, rsp))
	assert.Same(t, req, rsp.Request)
}
