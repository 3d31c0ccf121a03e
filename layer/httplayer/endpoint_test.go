package httplayer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// protocols runs a test once by each protocol.
func protocols(t *testing.T, test func(t *testing.T, protocol EndpointOption)) {
	t.Run("http1", func(t *testing.T) { test(t, WithHTTP1()) })
	t.Run("h2", func(t *testing.T) { test(t, WithHTTP2()) })
}

// shapes answers each path with a response of another shape.
func shapes(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/length":
		say(w, "hello")
	case "/chunks":
		for i := range 3 {
			sayf(w, "%d,", i)
			flush(w)
		}
	case "/empty":
		w.Header().Set("Content-Length", "0")
	case "/none":
		w.WriteHeader(http.StatusNoContent)
	case "/same":
		w.Header().Set("ETag", `"x"`)
		w.WriteHeader(http.StatusNotModified)
	case "/announced":
		w.Header().Set("Trailer", "Sum")
		say(w, "body")
		w.Header().Set("Sum", "42")
	case "/unannounced":
		say(w, "body")
		flush(w)
		w.Header().Set(http.TrailerPrefix+"Sum", "43")
	case "/early":
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		say(w, "late")
	case "/echo":
		fullDuplex(w)
		w.Header().Set("Was-Length", fmt.Sprint(r.ContentLength))
		w.Header().Set("Was-Encoding", strings.Join(r.TransferEncoding, ","))
		pipe(w, r.Body)
		if len(r.Trailer) > 0 {
			flush(w)
		}
		for name, values := range r.Trailer {
			w.Header()[http.TrailerPrefix+name] = values
		}
	case "/what":
		sayf(w, "%s %s %s %s", r.Proto, r.Method, r.Host, r.RequestURI)
	default:
		http.NotFound(w, r)
	}
}

func TestEndpointResponses(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		for _, tt := range []struct {
			method, path, body string
			status             int
			length             int64
			trailer            string
		}{
			{"GET", "/length", "hello", 200, 5, ""},
			{"HEAD", "/length", "", 200, 5, ""},
			{"GET", "/chunks", "0,1,2,", 200, -1, ""},
			{"POST", "/empty", "", 200, 0, ""},
			{"DELETE", "/none", "", 204, 0, ""},
			{"GET", "/same", "", 304, -2, ""},
			{"GET", "/announced", "body", 200, -2, "42"},
			{"GET", "/unannounced", "body", 200, -1, "43"},
			{"GET", "/nowhere", "404 page not found\n", 404, 19, ""},
		} {
			t.Run(tt.method+tt.path, func(t *testing.T) {
				req := request(t, tt.method, "http://web.default"+tt.path, "")
				rsp, err := e.Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, tt.status, rsp.StatusCode)
				if tt.length > -2 {
					assert.Equal(t, tt.length, rsp.ContentLength)
				}
				assert.Same(t, req, rsp.Request)
				assert.Equal(t, tt.body, read(t, rsp))
				assert.Equal(t, tt.trailer, rsp.Trailer.Get("Sum"))
				assert.Zero(t, e.Describe().State.Get("in_flight"))
			})
		}
		assert.Equal(t, 1, e.Describe().State.Get("connections"), "all of them by one connection")
	})
}

func TestEndpointRequests(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		call := func(t *testing.T, req *http.Request) *http.Response {
			t.Helper()
			before := *req
			header := req.Header.Clone()
			rsp, err := e.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, before, *req, "the request was changed")
			assert.Equal(t, header, req.Header)
			return rsp
		}
		t.Run("length", func(t *testing.T) {
			rsp := call(t, request(t, "POST", "http://web/echo", "hello"))
			assert.Equal(t, "5", rsp.Header.Get("Was-Length"))
			assert.Equal(t, "hello", read(t, rsp))
		})
		t.Run("no length", func(t *testing.T) {
			req := request(t, "POST", "http://web/echo", "hello")
			req.ContentLength = -1
			rsp := call(t, req)
			assert.Equal(t, "-1", rsp.Header.Get("Was-Length"))
			assert.Equal(t, "hello", read(t, rsp))
		})
		t.Run("nothing", func(t *testing.T) {
			for _, method := range []string{"GET", "DELETE", "OPTIONS", "HEAD"} {
				req := request(t, method, "http://web/echo", "")
				req.Body = http.NoBody
				rsp := call(t, req)
				assert.Equal(t, "0", rsp.Header.Get("Was-Length"))
				assert.Empty(t, rsp.Header.Get("Was-Encoding"))
				assert.Empty(t, read(t, rsp))
			}
		})
		t.Run("trailer", func(t *testing.T) {
			req := request(t, "POST", "http://web/echo", "hello")
			req.ContentLength = -1
			req.Trailer = http.Header{"Sum": {"44"}}
			rsp := call(t, req)
			assert.Equal(t, "hello", read(t, rsp))
			assert.Equal(t, "44", rsp.Trailer.Get("Sum"))
		})
		t.Run("bare", func(t *testing.T) {
			// As little as a request can say.
			rsp := call(t, &http.Request{URL: &url.URL{Path: "/what", RawQuery: "a=b;c"}})
			assert.Contains(t, read(t, rsp), " GET "+addr+" /what?a=b;c")
		})
		t.Run("as a server gets it", func(t *testing.T) {
			req := &http.Request{Method: "GET", Host: "web.default", RequestURI: "/elsewhere",
				URL: &url.URL{Path: "/what"}, Header: http.Header{}, Body: http.NoBody}
			assert.Contains(t, read(t, call(t, req)), " GET web.default /what")
		})
	})
}

func TestEndpointProtocolByRequest(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	by := func(e *Endpoint, major int, upgrade bool) string {
		req := request(t, "GET", "http://web/what", "")
		req.ProtoMajor = major
		if upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "chat")
		}
		rsp, err := e.Call(t.Context(), req)
		require.NoError(t, err)
		proto, _, _ := strings.Cut(read(t, rsp), " ")
		return proto
	}
	for name, tt := range map[string]struct {
		opts              []EndpointOption
		one, two, upgrade string
	}{
		"auto":        {nil, "HTTP/1.1", "HTTP/1.1", "HTTP/1.1"},
		"as received": {[]EndpointOption{WithKeepVersion()}, "HTTP/1.1", "HTTP/2.0", "HTTP/1.1"},
		"h1":          {[]EndpointOption{WithHTTP1()}, "HTTP/1.1", "HTTP/1.1", "HTTP/1.1"},
		"h2":          {[]EndpointOption{WithHTTP2()}, "HTTP/2.0", "HTTP/2.0", "HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(t, addr, tt.opts...)
			assert.Equal(t, tt.one, by(e, 1, false))
			assert.Equal(t, tt.two, by(e, 2, false))
			assert.Equal(t, tt.upgrade, by(e, 1, true))
		})
	}
}

func TestEndpoint1xx(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, h.Get("Link")))
				return nil
			},
		})
		rsp, err := endpoint(t, addr, protocol).Call(ctx, request(t, "GET", "http://web/early", ""))
		require.NoError(t, err)
		assert.Equal(t, "late", read(t, rsp))
		assert.Empty(t, rsp.Header.Get("Link"))
		assert.Equal(t, []string{"103</a.css>; rel=preload"}, hints)
	})
}

// asked is a body that counts calls of Read and Close.
type asked struct {
	io.Reader
	reads, closes atomic.Int32
}

func (b *asked) Read(p []byte) (int, error) {
	b.reads.Add(1)
	return b.Reader.Read(p)
}

func (b *asked) Close() error {
	b.closes.Add(1)
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func TestEndpointExpectContinue(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		pipe(w, r.Body)
	}))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		for path, want := range map[string]int{"/yes": 200, "/no": 417} {
			body := &asked{Reader: strings.NewReader("hello")}
			req := request(t, "PUT", "http://web"+path, "")
			req.Body, req.ContentLength = body, 5
			req.Header.Set("Expect", "100-continue")
			rsp, err := e.Call(t.Context(), req)
			require.NoError(t, err)
			assert.Equal(t, want, rsp.StatusCode)
			got := read(t, rsp)
			if want == 200 {
				assert.Equal(t, "hello", got)
			}
		}
	})
}

// both are connections being counted.
type counted struct {
	dials atomic.Int32
	by    func(context.Context, string, string) (net.Conn, error)
}

func (c *counted) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c.dials.Add(1)
	if c.by != nil {
		return c.by(ctx, network, addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

func TestEndpointUsesNewestIdleConnection(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { say(w, r.RemoteAddr) }))
	var c counted
	e := endpoint(t, addr, WithDialContext(c.DialContext))
	var open []*http.Response
	for range 3 {
		rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		open = append(open, rsp)
	}
	assert.EqualValues(t, 3, c.dials.Load(), "one for each, while all of them are open")
	assert.Equal(t, 3, e.Describe().State.Get("in_flight"))
	peers := make([]string, 3)
	for _, i := range []int{1, 0, 2} {
		peers[i] = read(t, open[i])
	}
	assert.Equal(t, 3, e.Describe().State.Get("idle"))
	for range 3 {
		rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NoError(t, err)
		assert.Equal(t, peers[2], read(t, rsp), "not the one that was used last")
	}
	assert.EqualValues(t, 3, c.dials.Load())
}

func TestEndpointEarlyCloseDropsConnection(t *testing.T) {
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 100 {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		for range 3 {
			rsp, err := e.Call(t.Context(), request(t, "GET", "http://web/", ""))
			require.NoError(t, err)
			_, err = io.ReadFull(rsp.Body, make([]byte, 10))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.NoError(t, e.Ready(t.Context()))
		assert.Zero(t, e.Describe().State.Get("in_flight"))
	})
}

func TestEndpointConcurrentRequests(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	protocols(t, func(t *testing.T, protocol EndpointOption) {
		e := endpoint(t, addr, protocol)
		connectNow(t.Context(), t, e)
		errs := make(chan error, 100)
		for i := range cap(errs) {
			go func() { errs <- echo(t.Context(), e, strings.Repeat(fmt.Sprint(i), 1000)) }()
		}
		for range cap(errs) {
			assert.NoError(t, <-errs)
		}
		assert.Zero(t, e.Describe().State.Get("in_flight"))
	})
}

// echo sends body and expects it back.
func echo(ctx context.Context, svc Service, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/echo", strings.NewReader(body))
	if err != nil {
		return err
	}
	rsp, err := svc.Call(ctx, req)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(rsp.Body)
	if string(got) != body {
		err = errors.Join(err, fmt.Errorf("%d bytes came back for %d", len(got), len(body)))
	}
	return errors.Join(err, rsp.Body.Close())
}

// connectNow has e connect without a request, as its Ready does after a failure.
func connectNow(ctx context.Context, t *testing.T, e *Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	seen := e.link.changes.Load()
	e.probe()
	require.NoError(t, e.wake.Wait(ctx, func() bool { return e.link.changes.Load() != seen }))
	_, err := e.link.failure()
	require.NoError(t, err)
}

func TestEndpointDescribes(t *testing.T) {
	addr := serve(t, http.HandlerFunc(shapes))
	e := endpoint(t, addr, WithHTTP2())
	keys := func() (keys []string) {
		for _, a := range e.Describe().State {
			keys = append(keys, a.Key)
		}
		return keys
	}
	assert.Equal(t, []string{"addr", "protocol", "connections", "idle", "in_flight", "link"}, keys())
	assert.Equal(t, "fresh", e.Describe().State.Get("link"))
	connectNow(t.Context(), t, e)
	assert.Equal(t, "endpoint   addr="+addr+" protocol=h2 connections=1 idle=1 in_flight=0 link=up\n",
		layer.Describe[*http.Request, *http.Response](e).String())

	down := endpoint(t, refusedAddr(t))
	_, err := down.Call(t.Context(), request(t, "GET", "http://web/", ""))
	require.Error(t, err)
	s := down.Describe().State
	assert.Equal(t, "down", s.Get("link"))
	assert.Equal(t, 1, s.Get("failures"))
	assert.Contains(t, s.Get("error"), "connection refused")
	assert.True(t, slices.ContainsFunc(s, func(a layer.Attr) bool { return a.Key == "retry_in" }))
}

// refusedAddr returns an address that refuses connections until the test ends, because a
// client uses it.
func refusedAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// A rejection has the time of the next connection attempt, and the client receives it.
func TestEndpointRetryAfter(t *testing.T) {
	addr := refusedAddr(t)
	for _, major := range []int{1, 2} {
		e := endpoint(t, addr, WithBackoff(layer.Backoff{Min: time.Hour, Max: time.Hour}))
		req := request(t, http.MethodGet, "http://web/", "")
		req.ProtoMajor = major
		for range 2 { // the request that fails to connect, and one that is rejected because of that
			_, err := e.Call(t.Context(), req)
			after, ok := layer.RetryAfter(err)
			require.True(t, ok, "%v", err)
			assert.Greater(t, after, 59*time.Minute)
			assert.LessOrEqual(t, after, time.Hour)
		}
		rsp, err := client(t, false).Get("http://" + serve(t, Handler(e)) + "/")
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		seconds, err := strconv.Atoi(rsp.Header.Get("Retry-After"))
		require.NoError(t, err)
		assert.Greater(t, seconds, 59*60)
		assert.LessOrEqual(t, seconds, 60*60)
	}
}

// bubble runs a test on the clock and the network of a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer synctest.Wait()
		defer cancel()
		test(t, ctx)
	})
}

// switched is a network that can be switched off. Connections then get no reply or are
// refused.
type switched struct {
	network *layertest.Network
	mu      sync.Mutex
	off     error // what dialling comes to; errSilence: nothing
	dials   []time.Duration
	began   time.Time
}

var errSilence = errors.New("nothing answers")

func (s *switched) set(off error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = off
}

func (s *switched) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.dials = append(s.dials, time.Since(s.began))
	off := s.off
	s.mu.Unlock()
	switch {
	case errors.Is(off, errSilence):
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	case off != nil:
		return nil, &net.OpError{Op: "dial", Net: network, Err: off}
	}
	return s.network.DialContext(ctx, network, addr)
}

func (s *switched) attempts() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.dials...)
}

// get calls svc and returns what came of it.
func get(ctx context.Context, svc Service, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web.default"+path, nil)
	if err != nil {
		return err
	}
	rsp, err := svc.Call(ctx, req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, rsp.Body)
	return errors.Join(err, rsp.Body.Close())
}

func TestEndpointReadyBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		s := &switched{network: &h.network, off: syscall.ECONNREFUSED}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext),
			WithBackoff(layer.Backoff{Min: 100 * time.Millisecond, Max: time.Second}))
		assert.NoError(t, e.Ready(ctx), "nothing has failed yet")
		assert.Empty(t, s.attempts(), "and Ready connects only after a failure")
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)

		// Many wait; one tries.
		ready := make(chan error, 20)
		for range cap(ready) {
			go func() { ready <- e.Ready(ctx) }()
		}
		time.Sleep(3600 * time.Millisecond)
		ms := time.Millisecond
		assert.Equal(t, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 2500 * ms, 3500 * ms}, s.attempts())
		synctest.Wait()

		err := get(ctx, e, "/")
		var where *layer.Error
		require.ErrorAs(t, err, &where)
		assert.Equal(t, "10.0.0.1:80", where.Endpoint)
		assert.ErrorIs(t, err, layer.ErrNotReady)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Len(t, s.attempts(), 7, "a call during the back-off connects to nothing")

		s.set(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		for range cap(ready) {
			require.NoError(t, <-ready)
		}
		assert.Len(t, s.attempts(), 8)
		require.NoError(t, get(ctx, e, "/"))
		assert.Len(t, s.attempts(), 8, "the connection of Ready was not used")

		// After a success the backoff starts from its minimum again.
		time.Sleep(time.Minute)
		assert.NoError(t, layer.Poll[*http.Request, *http.Response](e), "without a connection it is ready all the same")
		assert.Zero(t, e.Describe().State.Get("connections"))
		s.set(syscall.ECONNREFUSED)
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
		assert.Equal(t, "100ms", fmt.Sprint(e.Describe().State.Get("retry_in")))
	})
}

func TestEndpointCallAfterBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			s := &switched{network: &h.network, off: errSilence}
			e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(s.DialContext), WithBackoff(layer.Backoff{Min: 2 * time.Second}))
			began := time.Now()
			err := get(ctx, e, "/")
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, time.Second, time.Since(began), "the time to connect in")
			assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			assert.Len(t, s.attempts(), 1)
			time.Sleep(2 * time.Second)

			// Now one may try; the others are refused meanwhile.
			first := make(chan error, 1)
			go func() { first <- get(ctx, e, "/") }()
			synctest.Wait()
			began = time.Now()
			for range 10 {
				assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
			}
			assert.Zero(t, time.Since(began))
			assert.ErrorIs(t, <-first, layer.ErrNotReady)
			assert.Len(t, s.attempts(), 2)

			s.set(nil)
			time.Sleep(4 * time.Second)
			assert.NoError(t, get(ctx, e, "/"))
		}
	})
}

func TestEndpointConcurrentFailuresCountOnce(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		s := &switched{off: errSilence}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext), WithBackoff(layer.Backoff{Min: 100 * time.Millisecond}))
		errs := make(chan error, 50)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/") }()
		}
		for range cap(errs) {
			assert.ErrorIs(t, <-errs, layer.ErrNotReady)
		}
		assert.Len(t, s.attempts(), 50)
		assert.Equal(t, 1, e.Describe().State.Get("failures"))
		assert.Equal(t, 0, e.Describe().State.Get("connections"))
	})
}

func TestEndpointCallerCanceledDuringDial(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		for _, protocol := range []EndpointOption{WithHTTP1(), WithHTTP2()} {
			slow := func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(500 * time.Millisecond)
				return h.network.DialContext(ctx, network, addr)
			}
			c := &counted{by: slow}
			e := NewEndpoint(ctx, "10.0.0.1:80", protocol, WithDialContext(c.DialContext))
			began := time.Now()
			hurried, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, errSilence)
			body := &asked{Reader: strings.NewReader("hello")}
			req, _ := http.NewRequest(http.MethodPost, "http://web/", body)
			_, err := e.Call(hurried, req)
			cancel()
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorIs(t, err, errSilence)
			assert.Equal(t, 100*time.Millisecond, time.Since(began))
			assert.Zero(t, body.reads.Load()+body.closes.Load())

			// The connection is used by the next request.
			time.Sleep(time.Second)
			began = time.Now()
			assert.NoError(t, get(ctx, e, "/"))
			assert.Zero(t, time.Since(began))
			assert.EqualValues(t, 1, c.dials.Load())
		}
	})
}

func TestEndpointH2ConnectsOnceForBurst(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		const streams = 4
		h := newHost(ctx, streams)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(c.DialContext))
		errs := make(chan error, 50)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		assert.EqualValues(t, 1, c.dials.Load())
		assert.EqualValues(t, streams, h.held.Load(), "what the server allows, from the first request on")
		assert.Equal(t, streams, e.Describe().State.Get("in_flight"))
		for range cap(errs) - streams {
			err := <-errs
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorContains(t, err, "at capacity")
		}
		ready := make(chan error, 1)
		go func() { ready <- e.Ready(ctx) }()
		synctest.Wait()
		assert.Empty(t, ready)
		h.release()
		assert.NoError(t, <-ready)
		for range streams {
			assert.NoError(t, <-errs)
		}
		assert.EqualValues(t, 1, c.dials.Load())
	})
}

func TestEndpointMaxConns(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithMaxConns(2), WithDialContext(c.DialContext))
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		assert.ErrorIs(t, layer.Poll[*http.Request, *http.Response](e), layer.ErrNotReady)
		assert.ErrorIs(t, get(ctx, e, "/"), layer.ErrNotReady)
		h.release()
		assert.NoError(t, <-errs)
		assert.NoError(t, <-errs)
		assert.NoError(t, layer.Poll[*http.Request, *http.Response](e))
		for range 5 {
			assert.NoError(t, get(ctx, e, "/"))
		}
		assert.EqualValues(t, 2, c.dials.Load())
	})
}

func TestEndpointIdleTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		c := &counted{by: h.network.DialContext}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(c.DialContext))
		conns := func() any { synctest.Wait(); return e.Describe().State.Get("connections") }
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() { errs <- get(ctx, e, "/hold") }()
		}
		synctest.Wait()
		h.release()
		for range cap(errs) {
			assert.NoError(t, <-errs)
		}
		assert.Equal(t, 3, conns())
		// One of them is used every second; the others are not.
		for range 5 {
			time.Sleep(time.Second)
			assert.NoError(t, get(ctx, e, "/"))
		}
		assert.Equal(t, 1, conns())
		time.Sleep(3*time.Second - 1)
		assert.Equal(t, 1, conns())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 0, conns())
		assert.EqualValues(t, 3, c.dials.Load())
		assert.NoError(t, get(ctx, e, "/"))
		assert.EqualValues(t, 4, c.dials.Load())
	})
}

func TestEndpointKeepsH2Connection(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		e := NewEndpoint(ctx, "10.0.0.1:80", WithHTTP2(), WithDialContext(h.network.DialContext))
		connectNow(ctx, t, e)
		time.Sleep(time.Hour)
		assert.Equal(t, 1, e.Describe().State.Get("connections"))
	})
}

func TestEndpointUnderQueue(t *testing.T) {
	// tests.md A26: a request that arrives while the endpoint is away is served late.
	bubble(t, func(t *testing.T, ctx context.Context) {
		h := newHost(ctx, 0)
		s := &switched{network: &h.network, off: syscall.ECONNREFUSED}
		e := NewEndpoint(ctx, "10.0.0.1:80", WithDialContext(s.DialContext))
		svc := NewStack().Queue(10, 3*time.Second).Service(e)
		time.AfterFunc(1200*time.Millisecond, func() { s.set(nil) })
		began := time.Now()
		require.NoError(t, get(ctx, svc, "/"))
		assert.InDelta(t, 1500, time.Since(began).Milliseconds(), 200)
	})
}

// An idle HTTP/1.1 connection that uses the last place does not prevent a probe.
func TestEndpointProbeReplacesIdleConnection(t *testing.T) {
	var bad atomic.Bool
	once := errors.New("once")
	e := endpoint(t, serve(t, http.HandlerFunc(shapes)), WithMaxConns(1), WithKeepVersion(),
		WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if bad.Load() {
				return nil, once
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}))
	require.NoError(t, get(t.Context(), e, "/"))
	require.Equal(t, 1, e.Describe().State.Get("idle"))
	bad.Store(true)
	req, _ := byTwo(t, false)
	_, err := e.Call(t.Context(), req)
	require.ErrorIs(t, err, once)
	bad.Store(false)
	for _, svc := range []Service{e, SingleEndpoint(e)} {
		readyWithin(t, svc)
	}
	rsp, err := e.Call(t.Context(), req)
	require.NoError(t, err)
	assert.Equal(t, 2, rsp.ProtoMajor)
	read(t, rsp)
	require.NoError(t, get(t.Context(), e, "/"))
}

// After a failed connection for HTTP/1.1, the probe uses HTTP/1.1, even if an HTTP/2 connection works.
func TestEndpointProbesFailedProtocol(t *testing.T) {
	var bad atomic.Bool
	once := errors.New("once")
	e := endpoint(t, serve(t, http.HandlerFunc(shapes)), WithKeepVersion(), WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if bad.Load() {
			return nil, once
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}))
	byH2 := func() {
		two := request(t, "GET", "http://web/", "")
		two.ProtoMajor = 2
		rsp, err := e.Call(t.Context(), two)
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, 2, rsp.ProtoMajor)
	}
	one := func() (*http.Response, error) {
		return e.Call(t.Context(), request(t, "GET", "http://web/", ""))
	}
	byH2()
	bad.Store(true)
	_, err := one()
	require.ErrorIs(t, err, once)
	require.ErrorIs(t, err, layer.ErrNotReady)
	byH2() // succeeds, and makes HTTP/2 the last requested protocol
	bad.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, e.Ready(ctx))
	rsp, err := one()
	require.NoError(t, err)
	read(t, rsp)
	byH2()
}

// A probe does not use a connection of a server that has sent GOAWAY and still owes a
// response. It makes a new connection at once.
func TestEndpointProbesDuringGoAway(t *testing.T) {
	answer := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	old := serveOn(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-answer
		}
	}))
	next := serve(t, http.HandlerFunc(shapes))
	var gone, back atomic.Bool
	once := errors.New("once")
	e := endpoint(t, l.Addr().String(), WithKeepVersion(), WithConnectTimeout(time.Hour), WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case back.Load():
			addr = next
		case gone.Load():
			return nil, once
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}))
	two, _ := byTwo(t, false)
	rsp, err := e.Call(t.Context(), two)
	require.NoError(t, err)

	gone.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- old.Shutdown(context.WithoutCancel(t.Context())) }()
	defer func() {
		close(answer)
		read(t, rsp)
		assert.NoError(t, <-ended)
	}()
	require.Eventually(t, func() bool { return !e.h2.serves() }, patience, time.Millisecond)
	require.ErrorIs(t, get(t.Context(), e, "/"), once)
	back.Store(true)

	readyWithin(t, e)
	two, _ = byTwo(t, false)
	again, err := e.Call(t.Context(), two)
	require.NoError(t, err)
	read(t, again)
	require.NoError(t, get(t.Context(), e, "/"))
}

// wiretap is a listener that keeps every byte that is sent to it, and answers
// each connection with one HTTP/1.1 response.
type wiretap struct {
	net.Listener
	mu   sync.Mutex
	seen bytes.Buffer
}

func newWiretap(t *testing.T) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wiretap{Listener: l}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { w.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return w
}

func (w *wiretap) serve(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		w.mu.Lock()
		w.seen.Write(buf[:n])
		whole := bytes.Contains(w.seen.Bytes(), []byte("\r\n\r\n"))
		w.mu.Unlock()
		if whole {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}
		if err != nil || whole {
			return
		}
	}
}

func (w *wiretap) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}

// A bearer token of a request with an https URL is never sent by an endpoint without TLS,
// for any sender of the request.
func TestEndpointRejectsHTTPSInCleartext(t *testing.T) {
	target := &url.URL{Scheme: "https", Host: "api.example", Path: "/"}
	for name, send := range map[string]func(svc Service, req *http.Request) error{
		"client": func(svc Service, req *http.Request) error {
			_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
			return err
		},
		"client with layers": func(svc Service, req *http.Request) error {
			svc = NewStack().Retry(RetryPolicy{}).Queue(1, 1e9).Service(svc)
			_, err := (&http.Client{Transport: RoundTripper(svc)}).Do(req)
			return err
		},
		"service": func(svc Service, req *http.Request) error {
			_, err := svc.Call(req.Context(), req)
			return err
		},
		"odd case": func(svc Service, req *http.Request) error {
			req.URL.Scheme = "HTTPS"
			_, err := svc.Call(req.Context(), req)
			return err
		},
		"reverse proxy": func(svc Service, req *http.Request) (err error) {
			proxy := httputil.ReverseProxy{
				Transport:    RoundTripper(svc),
				Rewrite:      func(p *httputil.ProxyRequest) { p.SetURL(target) },
				ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, e error) { err = e },
			}
			front := serve(t, &proxy)
			req.URL = &url.URL{Scheme: "http", Host: front, Path: "/"}
			rsp, failed := client(t, false).Do(req)
			require.NoError(t, failed)
			rsp.Body.Close()
			return err
		},
	} {
		for _, opts := range [][]EndpointOption{nil, {WithHTTP1()}, {WithHTTP2()}} {
			w := newWiretap(t)
			body := &closeCounter{Reader: strings.NewReader("secret body")}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target.String(), body)
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer token")
			err = send(endpoint(t, w.Addr().String(), opts...), req)
			require.ErrorContains(t, err, "httplayer.WithCleartextHTTPS", name)
			require.NotErrorIs(t, err, layer.ErrNotReady, "another endpoint must not be tried")
			status, _ := StatusFromError(err)
			assert.Equal(t, http.StatusMisdirectedRequest, status)
			assert.Empty(t, w.text(), name)
			if name != "reverse proxy" { // which has a body of its own
				assert.NotZero(t, body.closes, name)
			}
		}
	}
}

type closeCounter struct {
	io.Reader
	closes int
}

func (c *closeCounter) Close() error {
	c.closes++
	return nil
}

func TestWithCleartextHTTPS(t *testing.T) {
	w := newWiretap(t)
	req := request(t, http.MethodGet, "https://api.example/", "")
	req.Header.Set("Authorization", "Bearer token")
	rsp, err := RoundTripper(endpoint(t, w.Addr().String(), WithCleartextHTTPS())).RoundTrip(req)
	require.NoError(t, err)
	read(t, rsp)
	require.Contains(t, w.text(), "Bearer token")
}

// A server that terminates TLS forwards in cleartext, as gateways do. Its requests have no
// scheme. A request with an absolute https target is rejected.
func TestHandlerForwardsTLSInCleartext(t *testing.T) {
	up := serve(t, http.HandlerFunc(shapes))
	var scheme string
	seen := serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
		scheme = HTTP{}.Scheme(r)
		return endpoint(t, up).Call(ctx, r)
	})
	front := httptest.NewTLSServer(Handler(seen))
	defer front.Close()
	rsp, err := front.Client().Get(front.URL + "/what")
	require.NoError(t, err)
	assert.Contains(t, read(t, rsp), "/what")
	assert.Equal(t, "https", scheme)

	first, _, _ := wireTo(t, serve(t, Handler(endpoint(t, up)))).ask("GET https://web/what HTTP/1.1\nHost: web\n\n")
	assert.Equal(t, "HTTP/1.1 421 Misdirected Request", first)
}

// A nil configuration is the default of crypto/tls: the connection is encrypted.
func TestWithTLSNilConfig(t *testing.T) {
	t.Parallel()
	w := newWiretap(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil && w.text() == "" {
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := endpoint(t, w.Addr().String(), WithTLS(nil)).Call(ctx, request(t, http.MethodGet, "http://web/secret", ""))
	require.Error(t, err)
	require.NotEmpty(t, w.text())
	require.NotContains(t, w.text(), "secret")
}

// A failed connection to the only address is answered at once.
func TestSingleEndpointFailsAtOnce(t *testing.T) {
	svc := SingleEndpoint(endpoint(t, refusedAddr(t)))
	for range 3 { // the first tries, the others hear of it
		require.NoError(t, svc.Ready(t.Context()))
		_, err := svc.Call(t.Context(), request(t, "GET", "http://web/", ""))
		require.NotErrorIs(t, err, layer.ErrNotReady)
		status, _ := StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, status)
	}
}

// A waiting Ready returns when the address is lost.
func TestSingleEndpointReadyAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		lost := errors.New("not any more")
		e := NewEndpoint(ctx, "192.0.2.1:80", WithMaxConns(1),
			WithDialContext(func(context.Context, string, string) (net.Conn, error) { return nil, lost }))
		e.used[0].Store(true)
		e.link.report(false, nil) // it was reached,
		require.True(t, e.h1.reserve())
		ready := make(chan error, 1)
		go func() { ready <- SingleEndpoint(e).Ready(ctx) }() // and is full;
		synctest.Wait()
		require.Empty(t, ready)
		e.link.report(false, lost) // the only connection is lost
		e.h1.forget()
		require.NoError(t, <-ready)
	})
}

// A request that the server did not process before it closed the connection is rejected, and a queue
// sends it again.
func TestSingleEndpointRejectsUnprocessed(t *testing.T) {
	addr := rawServer(t, func(n int, conn net.Conn) {
		c := newRawH2(conn)
		if c.preface() != nil {
			return
		}
		c.settings(100)
		for s := c.request(); s != 0; s = c.request() {
			if n == 0 {
				c.goAway(0)
				c.drain()
				return
			}
			c.respond(s, "ok")
		}
	})
	svc := NewStack().Queue(10, patience).Service(SingleEndpoint(endpoint(t, addr, WithHTTP2())))
	rsp, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	assert.Equal(t, "ok", read(t, rsp))
}
