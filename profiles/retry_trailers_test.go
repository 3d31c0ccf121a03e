package profiles_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

type (
	httpRouter = profiles.Router[*http.Request, *http.Response]
)

// newHTTPRouter returns a router right over the endpoint at addr.
func newHTTPRouter(t *testing.T, c profiles.Config, p *profiles.Profile, addr string) *httpRouter {
	t.Helper()
	return newRouterOver(t, c, p, func(ctx context.Context) httplayer.Service { return httplayer.NewEndpoint(ctx, addr, briefly()) })
}

func briefly() httplayer.EndpointOption {
	return httplayer.WithBackoff(layer.Backoff{Min: 20 * time.Millisecond, Max: 40 * time.Millisecond})
}

// newRouterOver is a router with the other fields of c right over an endpoint.
func newRouterOver(t *testing.T, c profiles.Config, p *profiles.Profile, endpoint func(context.Context) httplayer.Service) *httpRouter {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var source profiles.Static
	source.Set(target, p)
	c.Target, c.Source, c.InitialWait = target, &source, time.Minute
	return profiles.New(ctx, c, httplayer.HTTP{}, func(string) httplayer.Service { return endpoint(ctx) },
		profiles.WithRouteLayers(httplayer.HTTP{}))
}

// newGRPCRouter returns a router over a server that answers with serve, which gets the number of
// the call.
func newGRPCRouter(t *testing.T, c profiles.Config, p *profiles.Profile, serve func(w http.ResponseWriter, r *http.Request, n int64)) (*httpRouter, *atomic.Int64) {
	t.Helper()
	came := new(atomic.Int64)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		serve(w, r, came.Add(1))
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return newHTTPRouter(t, c, p, srv.Listener.Addr().String()), came
}

// bubbledGRPC is newGRPCRouter in a bubble.
func bubbledGRPC(
	t *testing.T, c profiles.Config, p *profiles.Profile, serve func(w http.ResponseWriter, r *http.Request, n int64),
) (*httpRouter, *atomic.Int64) {
	t.Helper()
	came, network := new(atomic.Int64), new(layertest.Network)
	l, err := network.Listen("tcp", "10.0.0.1:80")
	require.NoError(t, err)
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		serve(w, r, came.Add(1))
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return newRouterOver(t, c, p, func(ctx context.Context) httplayer.Service {
		return httplayer.NewEndpoint(ctx, "10.0.0.1:80", httplayer.WithDialContext(network.DialContext), httplayer.WithHTTP2())
	}), came
}

func call(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req := streamed(t, "/books.Books/Get", body, -1)
	req.ProtoMajor, req.ProtoMinor = 2, 0
	req.Header.Set("Content-Type", "application/grpc")
	return req
}

// message sends a piece of a gRPC response, after the headers.
func message(w http.ResponseWriter, s string) {
	_, _ = io.WriteString(w, s)
	_ = http.NewResponseController(w).Flush()
}

func ends(w http.ResponseWriter, code string) {
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", code)
}

// In a bubble the trailers arrive before Peek returns.
func TestRetryByTrailers(t *testing.T) {
	for name, before := range map[string][]string{"first": {""}, "after one frame": {"half a "}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCounters()
				r, came := bubbledGRPC(t, profiles.Config{Metrics: c.instruments}, retryable(), func(w http.ResponseWriter, req *http.Request, n int64) {
					body, _ := io.ReadAll(req.Body)
					for _, s := range before {
						_, _ = io.WriteString(w, s) // it goes out with the trailers
					}
					code := "14"
					if n > 2 {
						_, _ = w.Write(body)
						code = "0"
					}
					ends(w, code)
				})
				rsp, err := r.Call(t.Context(), call(t, strings.NewReader("hello")))
				require.NoError(t, err)
				body, err := io.ReadAll(rsp.Body)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				assert.Equal(t, before[0]+"hello", string(body))
				assert.Equal(t, "0", rsp.Trailer.Get("Grpc-Status"))
				assert.EqualValues(t, 3, came.Load())
				assert.EqualValues(t, 2, of(c.tries.Responses, "failure"))
				assert.EqualValues(t, 1, of(c.requests.Responses, "success"))
			})
		})
	}
}

// A failure by a trailer condition is retried for any request.
func TestRetryByCustomTrailer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retryable(func(r *profiles.Route) {
			r.Classes = []profiles.ResponseClass{{Match: profiles.Trailer{Name: "x-sum", Value: profiles.Exact("bad")}, Failure: true}}
		})
		r, came := bubbledGRPC(t, profiles.Config{}, p, func(w http.ResponseWriter, r *http.Request, n int64) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "hello")
			w.Header().Set(http.TrailerPrefix+"X-Sum", map[bool]string{true: "bad", false: "good"}[n == 1])
		})
		req := call(t, strings.NewReader(""))
		req.Header.Set("Content-Type", "text/plain")
		rsp, err := r.Call(t.Context(), req)
		require.NoError(t, err)
		_, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, "good", rsp.Trailer.Get("X-Sum"))
		assert.EqualValues(t, 2, came.Load())
	})
}

// A stream is returned with its first message and not retried afterwards. It is
// counted.
func TestRetryOfStream(t *testing.T) {
	c, seen := newCounters(), make(chan struct{})
	r, came := newGRPCRouter(t, profiles.Config{Metrics: c.instruments}, retryable(), func(w http.ResponseWriter, r *http.Request, _ int64) {
		_, _ = io.Copy(io.Discard, r.Body)
		message(w, "one")
		<-seen
		message(w, "two")
		ends(w, "14")
	})
	rsp, err := r.Call(t.Context(), call(t, strings.NewReader("")))
	require.NoError(t, err)
	first := make([]byte, 3)
	_, err = io.ReadFull(rsp.Body, first)
	require.NoError(t, err)
	close(seen)
	rest, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, "onetwo", string(first)+string(rest))
	assert.Equal(t, "14", rsp.Trailer.Get("Grpc-Status"))
	assert.EqualValues(t, 1, came.Load())
	assert.EqualValues(t, 1, of(c.requests.Responses, "failure"))
}

// A bidirectional call must not be delayed: its client may wait for the headers before
// it continues, and the server for the client.
func TestRetryWhileRequestIsSent(t *testing.T) {
	r, came := newGRPCRouter(t, profiles.Config{}, retryable(), func(w http.ResponseWriter, r *http.Request, _ int64) {
		message(w, "")
		word := make([]byte, 5)
		_, _ = io.ReadFull(r.Body, word)
		message(w, "got "+string(word))
		ends(w, "0")
	})
	body, say := io.Pipe()
	rsp, err := r.Call(t.Context(), call(t, body))
	require.NoError(t, err)
	_, err = io.WriteString(say, "hello")
	require.NoError(t, err)
	require.NoError(t, say.Close())
	got, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, "got hello", string(got))
	assert.EqualValues(t, 1, came.Load())
}

// The limit on a request covers the wait for the trailers.
func TestTimeoutDuringPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, came := bubbledGRPC(t, profiles.Config{}, retryable(func(r *profiles.Route) { r.Timeout = time.Second }), func(w http.ResponseWriter, r *http.Request, _ int64) {
			_, _ = io.Copy(io.Discard, r.Body)
			message(w, "")
			<-r.Context().Done()
		})
		_, err := r.Call(t.Context(), call(t, strings.NewReader("")))
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		assert.EqualValues(t, 1, came.Load())
	})
}

// A retry waits for the backoff of an endpoint. After the last attempt the error is
// that of the connection.
func TestRetryOfSingleEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.0.0.1:80"
		var network layertest.Network
		endpoint := func(ctx context.Context) httplayer.Service {
			return httplayer.SingleEndpoint(httplayer.NewEndpoint(ctx, addr, httplayer.WithDialContext(network.DialContext), briefly()))
		}
		c := newCounters()
		r := newRouterOver(t, profiles.Config{Metrics: c.instruments}, retryable(func(r *profiles.Route) { r.Retry.Max = 2 }), endpoint)
		_, err := r.Call(t.Context(), streamed(t, "/", strings.NewReader("hello"), 5))
		require.Error(t, err)
		require.NotErrorIs(t, err, layer.ErrNotReady)
		require.ErrorContains(t, err, "3 attempts")
		code, _ := httplayer.StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, code)
		assert.EqualValues(t, 2, count(c.requests.Retries))
		assert.EqualValues(t, 3, count(c.tries.Requests))
		assert.EqualValues(t, 1, count(c.requests.Requests))

		r = newRouterOver(t, profiles.Config{}, retryable(), func(ctx context.Context) httplayer.Service {
			return &dormant{Service: endpoint(ctx), wake: func() {
				l, err := network.Listen("tcp", addr)
				if !assert.NoError(t, err) {
					return
				}
				srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })}
				t.Cleanup(func() { srv.Close() })
				go func() { _ = srv.Serve(l) }()
			}}
		})
		rsp, err := r.Call(t.Context(), streamed(t, "/", strings.NewReader("hello"), 5))
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Equal(t, "hello", string(body))
	})
}

// dormant is an endpoint with a server that starts after the first error.
type dormant struct {
	httplayer.Service
	once sync.Once
	wake func()
}

func (d *dormant) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := d.Service.Call(ctx, req)
	if err != nil {
		d.once.Do(d.wake)
	}
	return rsp, err
}
