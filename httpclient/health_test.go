package httpclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// readyEndpoints returns the addresses that get requests.
func readyEndpoints(c *httpclient.Client) (ready []string) {
	for _, e := range c.Endpoints() {
		if e.State == "ready" {
			ready = append(ready, e.ID.Addr.String())
		}
	}
	return ready
}

// One of two endpoints is unhealthy, recovers, and the other one becomes unhealthy.
func TestClientHealthCheck(t *testing.T) {
	httpServer := func(t *testing.T) (addr string, set func(healthy bool)) {
		t.Helper()
		var healthy atomic.Bool
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RequestURI() != "/healthz?full" || r.Host != "web.default:80" || !healthy.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String(), healthy.Store
	}
	grpcServer := func(t *testing.T) (addr string, set func(healthy bool)) {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s, state := grpc.NewServer(), health.NewServer()
		healthpb.RegisterHealthServer(s, state)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		return l.Addr().String(), func(healthy bool) {
			status := healthpb.HealthCheckResponse_NOT_SERVING
			if healthy {
				status = healthpb.HealthCheckResponse_SERVING
			}
			state.SetServingStatus("books.v1", status)
		}
	}
	tcpServer := func(t *testing.T) (addr string, set func(healthy bool)) {
		t.Helper()
		addr = freeport.Addr(t)
		s := new(http.Server)
		t.Cleanup(func() { s.Close() })
		return addr, func(healthy bool) {
			if !healthy {
				require.NoError(t, s.Close())
				return
			}
			l, err := net.Listen("tcp", addr)
			require.NoError(t, err)
			go func() { _ = s.Serve(l) }()
		}
	}
	for name, tt := range map[string]struct {
		server func(*testing.T) (string, func(bool))
		check  httpclient.HealthCheck
	}{
		"http": {httpServer, httpclient.CheckHTTP("/healthz?full")},
		"grpc": {grpcServer, httpclient.CheckGRPC("books.v1")},
		"tcp":  {tcpServer, httpclient.CheckTCP()},
	} {
		t.Run(name, func(t *testing.T) {
			a, setA := tt.server(t)
			b, setB := tt.server(t)
			setA(true)
			web := httpclient.New(t.Context(), "_http._tcp.web.default:80", httpclient.WithAddrs(a, b),
				httpclient.WithHealthCheck(tt.check, discover.HealthPolicy{Interval: 5 * time.Millisecond, Unhealthy: 2}))
			only := func(addr string) {
				t.Helper()
				require.Eventually(t, func() bool {
					if rsp, err := client(t, web).Get("http://web/"); err == nil { // a rejection makes an endpoint unready
						rsp.Body.Close()
					}
					ready := readyEndpoints(web)
					return len(ready) == 1 && ready[0] == addr
				}, time.Minute, time.Millisecond, "%v", web.Endpoints())
			}
			only(a)
			setB(true)
			require.Eventually(t, func() bool { return len(readyEndpoints(web)) == 2 }, time.Minute, time.Millisecond)
			setA(false)
			only(b)
		})
	}
	assert.Panics(t, func() { httpclient.CheckHTTP("healthz") })
	assert.Panics(t, func() { httpclient.WithHealthCheck(nil, discover.HealthPolicy{}) })
}

// A check can have the host, the method and the fields that a server expects, and another status.
func TestCheckRequest(t *testing.T) {
	var got *http.Request
	status := http.StatusOK
	svc := layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
		got = r
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: http.NoBody}, nil
	})
	target := discover.Target{Name: "web.default:80"}
	check := httpclient.CheckRequest(httpclient.HTTPCheck{
		Path: "/up?full", Method: http.MethodHead, Host: "web.example", Header: http.Header{"X-Probe": {"1"}}, Statuses: []int{204, 401},
	})
	require.EqualError(t, check(t.Context(), target, svc), "status OK")
	assert.Equal(t, "HEAD http://web.example/up?full web.example [1]", fmt.Sprint(got.Method, " ", got.URL, " ", got.Host, " ", got.Header["X-Probe"]))
	status = http.StatusUnauthorized
	require.NoError(t, check(t.Context(), target, svc))
	check = httpclient.CheckHTTP("/up")
	require.Error(t, check(t.Context(), target, svc))
	assert.Equal(t, "GET web.default:80", got.Method+" "+got.Host)
	status = http.StatusNoContent
	require.NoError(t, check(t.Context(), target, svc))
}

// Checks reach an endpoint also while its limit is full.
func TestClientHealthCheckAtLimit(t *testing.T) {
	var checks atomic.Int64
	began, end := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			checks.Add(1)
			return
		}
		close(began)
		<-end
	}))
	t.Cleanup(s.Close)
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()),
		httpclient.WithHealthCheck(httpclient.CheckHTTP("/healthz"), discover.HealthPolicy{Interval: time.Millisecond}),
		httpclient.WithEndpointLayer(httplayer.NewStack().Limit(1).Layer()))
	done, c := make(chan error), client(t, web)
	go func() {
		rsp, err := c.Get("http://web/")
		if err == nil {
			rsp.Body.Close()
		}
		done <- err
	}()
	<-began
	before := checks.Load()
	assert.Eventually(t, func() bool { return checks.Load() > before+5 }, 10*time.Second, time.Millisecond)
	close(end)
	require.NoError(t, <-done)
}

// Requests of a browser with cookies reach one of ten endpoints.
func TestClientStickySession(t *testing.T) {
	var addrs []string
	for range 10 {
		addr := ""
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, addr) }))
		t.Cleanup(s.Close)
		addr = s.Listener.Addr().String()
		addrs = append(addrs, addr)
	}
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(addrs...), httpclient.WithStickySession("node"))
	require.NoError(t, web.WaitReady(t.Context()))
	require.Eventually(t, func() bool { return len(readyEndpoints(web)) == 10 }, time.Minute, time.Millisecond)
	endpoints := make(map[string]bool)
	for range 20 {
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		c := client(t, web)
		c.Jar = jar
		first := body(t, c, "http://web/")
		endpoints[first] = true
		for range 5 {
			assert.Equal(t, first, body(t, c, "http://web/"))
		}
	}
	assert.Greater(t, len(endpoints), 1)
}

// The access log of a gateway has the client, the upstream, the attempts and the error.
func TestGatewayAccessLog(t *testing.T) {
	var first atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flaky" && first.CompareAndSwap(false, true) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(s.Close)
	upstream := s.Listener.Addr().String()
	web := httpclient.New(t.Context(), "web.default", httpclient.WithAddrs(upstream), httpclient.WithPolicy(balance.Policy{}))
	front := httplayer.NewStack().
		With("forwarded", httplayer.Forwarded(netip.MustParsePrefix("127.0.0.0/8"))).
		Filter(func(r *http.Request) error {
			if r.URL.Path == "/denied" {
				return &httplayer.StatusError{Code: http.StatusForbidden, Reason: "denied by policy"}
			}
			return nil
		})
	lines := make(chan string, 10)
	handler := httplayer.Handler(front.Service(web), httplayer.WithAccessLog(lineWriter(lines), httplayer.JSONLog, nil))
	gateway := httptest.NewServer(handler)
	t.Cleanup(gateway.Close)
	for _, tt := range []struct {
		path string
		want map[string]any
	}{
		{"/flaky", map[string]any{"status": 200.0, "attempts": 2.0, "upstream": "web.default", "endpoint": upstream, "response_bytes": 20.0}},
		{"/denied", map[string]any{"status": 403.0, "error": "filter: denied by policy"}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gateway.URL+tt.path, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", "192.0.2.1")
		rsp, err := gateway.Client().Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		rsp.Body.Close()
		if tt.path == "/flaky" {
			assert.Equal(t, "192.0.2.1, 127.0.0.1", string(text))
		}
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(<-lines), &got))
		assert.Equal(t, "192.0.2.1", got["client.ip"])
		for name, value := range tt.want {
			assert.Equal(t, value, got[name], "%s of %v", name, got)
		}
		if tt.path == "/denied" {
			assert.NotContains(t, got, "attempts")
			assert.True(t, strings.HasPrefix(rsp.Header.Get("Content-Type"), "application/problem+json"))
		}
	}
}

type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
