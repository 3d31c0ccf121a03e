package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
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
