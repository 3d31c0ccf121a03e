package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// seen is a layer that keeps what came of the requests that it saw.
type seen struct {
	Service
	outcomes chan layer.Outcome[*http.Response]
}

func (s seen) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	rsp, err := s.Service.Call(ctx, r)
	s.outcomes <- layer.Outcome[*http.Response]{Response: rsp, Err: err, Ended: true}
	return rsp, err
}

// watched is layers above that, with a time limit so that there is a context
// other than the server's.
func watched(outcomes chan layer.Outcome[*http.Response]) layer.Layer[*http.Request, *http.Response] {
	return NewStack().Timeout(time.Minute).Limit(10).
		With("seen", func(next Service) Service { return seen{next, outcomes} }).Layer()
}

// bothWays runs a test with a client of HTTP/1.1 and one of HTTP/2.
func bothWays(t *testing.T, h http.Handler, test func(t *testing.T, c *http.Client, base string)) {
	t.Helper()
	for name, two := range map[string]bool{"http1": false, "h2": true} {
		t.Run(name, func(t *testing.T) { test(t, client(t, two), "http://"+serve(t, h)) })
	}
}

func TestMiddlewareServes(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo/{name}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Name", r.PathValue("name"))
		fullDuplex(w)
		pipe(w, r.Body)
	})
	mux.HandleFunc("/implicit", func(w http.ResponseWriter, _ *http.Request) { say(w, "x") })
	mux.HandleFunc("/nothing", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/teapot", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum, Grpc-Status")
		say(w, "x")
		w.Header().Set("Sum", "1")
		w.Header().Set(http.TrailerPrefix+"Late", "2")
		w.Header().Set("Grpc-Status", "14")
	})
	bothWays(t, Middleware(watched(outcomes))(mux), func(t *testing.T, c *http.Client, base string) {
		for _, tt := range []struct {
			method, path, want string
			status             int
		}{
			{"POST", "/echo/you", "hello", 200}, {"GET", "/implicit", "x", 200}, {"GET", "/nothing", "", 200},
			{"GET", "/teapot", "", 418}, {"GET", "/trailers", "x", 200}, {"GET", "/none", "404 page not found\n", 404},
		} {
			body := ""
			if tt.method == http.MethodPost {
				body = "hello"
			}
			rsp, err := c.Do(request(t, tt.method, base+tt.path, body))
			require.NoError(t, err)
			assert.Equal(t, tt.want, read(t, rsp), tt.path)
			assert.Equal(t, tt.status, rsp.StatusCode, tt.path)
			out := <-outcomes
			require.NoError(t, out.Err)
			assert.Equal(t, tt.status, out.Response.StatusCode, tt.path)
			switch tt.path {
			case "/echo/you":
				assert.Equal(t, "you", rsp.Header.Get("X-Name"))
				assert.Equal(t, "you", out.Response.Header.Get("X-Name"))
			case "/trailers":
				want := http.Header{"Sum": {"1"}, "Late": {"2"}, "Grpc-Status": {"14"}}
				assert.Equal(t, want, rsp.Trailer)
				assert.Equal(t, want, out.Response.Trailer)
				assert.Equal(t, layer.Retryable, Classify(out))
			}
		}
	})
}

func TestMiddlewareStreams(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	next := make(chan struct{})
	h := Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.(http.Flusher).Flush()
		<-next
		say(w, "more")
		flush(w)
		<-next
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		var hints int
		req := request(t, http.MethodGet, base, "")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil },
		}))
		rsp, err := c.Do(req) // the head was flushed
		require.NoError(t, err)
		assert.Equal(t, 1, hints)
		next <- struct{}{}
		piece := make([]byte, 4)
		_, err = io.ReadFull(rsp.Body, piece)
		require.NoError(t, err)
		assert.Empty(t, outcomes, "it ends when the handler returns")
		next <- struct{}{}
		read(t, rsp)
		assert.Equal(t, 200, (<-outcomes).Response.StatusCode)
	})
}

func TestMiddlewareWriterInterfaces(t *testing.T) {
	bothWays(t, Middleware(nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		_, readerFrom := w.(io.ReaderFrom)
		_, stringWriter := w.(io.StringWriter)
		assert.Equal(t, []bool{true, true, true, true}, []bool{flusher, hijacker, readerFrom, stringWriter})
		assert.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		_, err := io.Copy(w, strings.NewReader("from a reader"))
		assert.NoError(t, err)
		_, err = io.WriteString(w, " and a string")
		assert.NoError(t, err)
	})), func(t *testing.T, c *http.Client, base string) {
		rsp, err := c.Get(base)
		require.NoError(t, err)
		assert.Equal(t, "from a reader and a string", read(t, rsp))
	})
}

func TestMiddlewareHijack(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	addr := serve(t, Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		say(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := rw.ReadString('\n')
		say(conn, line)
	})))
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	r := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, 101, rsp.StatusCode)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "hello\n", line)
	assert.Equal(t, 101, (<-outcomes).Response.StatusCode)
}

func TestMiddlewareRejects(t *testing.T) {
	held, letGo := make(chan struct{}), make(chan struct{})
	h := Middleware(NewStack().Limit(1).Layer(), WithErrorHeaders(true))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		flush(w) // the head is out, and the slot is held still
		held <- struct{}{}
		<-letGo
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		first, err := c.Get(base)
		require.NoError(t, err)
		<-held
		second, err := c.Get(base)
		require.NoError(t, err)
		assert.Equal(t, 503, second.StatusCode)
		assert.Contains(t, second.Header.Get("L5d-Proxy-Error"), "1 of 1 in flight")
		assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503}`, read(t, second))
		letGo <- struct{}{}
		read(t, first)
	})
	assert.Contains(t, h.(layer.Describer).Describe().String(), "handler")
}

func TestMiddlewareTimeLimit(t *testing.T) {
	h := Middleware(NewStack().Timeout(20 * time.Millisecond).Layer())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			flush(w)
		}
		<-r.Context().Done()
		if r.URL.Path == "/own" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	each(t, func(t *testing.T, ctx context.Context, h2 bool, _ EndpointOption) {
		up := newHost(ctx, 0)
		up.srv.Handler = h
		c := client(t, h2)
		c.Transport.(*http.Transport).DialContext = up.network.DialContext
		const base = "http://10.0.0.1:80"
		for path, want := range map[string]int{"/": 504, "/own": 418} {
			rsp, err := c.Get(base + path)
			require.NoError(t, err)
			read(t, rsp)
			assert.Equal(t, want, rsp.StatusCode, path)
		}
		rsp, err := c.Get(base + "/begun")
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, 200, rsp.StatusCode, "a started response continues")
	})
}

func TestMiddlewareLayerResponses(t *testing.T) {
	answer := func(when func(path string) bool, rsp func(inner *http.Response) (*http.Response, error)) layer.Layer[*http.Request, *http.Response] {
		return func(next Service) Service {
			return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/instead" {
					return rsp(nil)
				}
				inner, err := next.Call(ctx, r)
				if err != nil || !when(r.URL.Path) {
					return inner, err
				}
				return rsp(inner)
			})
		}
	}
	late := &asked{Reader: strings.NewReader("too late")}
	l := answer(func(path string) bool { return path != "/" }, func(inner *http.Response) (*http.Response, error) {
		switch {
		case inner == nil:
			return &http.Response{StatusCode: 299, Header: http.Header{"X-By": {"a layer"}, "Connection": {"x"}}, ContentLength: -1,
				Body: io.NopCloser(strings.NewReader("instead")), Trailer: http.Header{"Sum": {"1"}}}, nil
		case inner.Request.URL.Path == "/replaced":
			return &http.Response{StatusCode: 299, Body: late}, nil
		}
		return nil, errors.New("odd")
	})
	h := Middleware(l)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/unwritten" {
			say(w, "handler")
			flush(w)
		}
	}))
	bothWays(t, h, func(t *testing.T, c *http.Client, base string) {
		rsp, err := c.Get(base + "/instead")
		require.NoError(t, err)
		assert.Equal(t, 299, rsp.StatusCode)
		assert.Equal(t, "a layer", rsp.Header.Get("X-By"))
		assert.Equal(t, "instead", read(t, rsp))
		assert.Equal(t, "1", rsp.Trailer.Get("Sum"))

		closes := late.closes.Load()
		rsp, err = c.Get(base + "/replaced")
		require.NoError(t, err)
		assert.Equal(t, "handler", read(t, rsp))
		assert.Equal(t, closes+1, late.closes.Load())

		rsp, err = c.Get(base + "/unwritten")
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, 500, rsp.StatusCode)

		rsp, err = c.Get(base + "/written")
		require.NoError(t, err)
		_, err = io.ReadAll(rsp.Body)
		assert.Error(t, err, "it must not look complete")
		rsp.Body.Close()
	})
}

func TestMiddlewareRunsHandlerOnce(t *testing.T) {
	runs := 0
	l := func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			_, _ = next.Call(ctx, r)
			return next.Call(ctx, r)
		})
	}
	w := httptest.NewRecorder()
	h := Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs++ }))
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, 1, runs)
	assert.Equal(t, 500, w.Code)
	_, err := handled{h}.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Error(t, err)
}

func TestMiddlewarePanic(t *testing.T) {
	limit := NewStack().Limit(1).Layer()
	h := Middleware(limit)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("odd") }))
	for range 2 { // the slot came back
		assert.PanicsWithValue(t, "odd", func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) })
	}
}

// An invalid status is not that of the response, because the server panics. The handler may recover.
func TestMiddlewareInvalidStatus(t *testing.T) {
	outcomes := make(chan layer.Outcome[*http.Response], 1)
	h := Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.Panics(t, func() { w.WriteHeader(1000) })
		w.WriteHeader(http.StatusInternalServerError)
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Equal(t, http.StatusInternalServerError, (<-outcomes).Response.StatusCode)
}

// hijackable is a writer with Hijack that is not of net/http.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, other := net.Pipe()
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), other.Close()
}

// full is one that can do all that net/http's of HTTP/1.1 can.
type full struct{ hijackable }

func (f full) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.ResponseRecorder, r) }

func TestMiddlewareErrorAfterHijack(t *testing.T) {
	fails := func(next Service) Service {
		return serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			_, err := next.Call(ctx, r)
			return nil, errors.Join(err, errors.New("odd"))
		})
	}
	w := httptest.NewRecorder()
	Middleware(fails)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			conn.Close()
		}
	})).ServeHTTP(full{hijackable{w}}, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Empty(t, w.Header(), "nothing more is written")

	outcomes := make(chan layer.Outcome[*http.Response], 1)
	Middleware(watched(outcomes))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, 101, (<-outcomes).Response.StatusCode)
}

// A response of a layer to CONNECT, instead of the handler, is sent.
func TestMiddlewareConnect(t *testing.T) {
	closed := make(chan bool, 1)
	for status, want := range map[int]int{403: 403, 407: 407, 200: http.StatusBadGateway} { // a 200 without a tunnel is invalid
		answers := func(Service) Service {
			return serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: status, Header: http.Header{"X-Why": {"no"}}, Body: onClose(func() { closed <- true }), Request: r,
				}, nil
			})
		}
		c := wireTo(t, servingBy(t, Middleware(answers)(http.NotFoundHandler())).addr)
		say(c, strings.ReplaceAll(connectHead, "\n", "\r\n"))
		rsp, err := http.ReadResponse(c.in, &http.Request{Method: http.MethodConnect})
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, want, rsp.StatusCode)
		if want == status {
			assert.Equal(t, "no", rsp.Header.Get("X-Why"))
		}
		require.Eventually(t, func() bool { return len(closed) == 1 }, patience, time.Millisecond)
		<-closed
	}
}
