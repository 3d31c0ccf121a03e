package httpclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// events collects events, and is a writer for logs.
type events struct {
	mu   sync.Mutex
	all  []httpclient.Event
	text bytes.Buffer
}

func (x *events) add(e httpclient.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, e)
}

func (x *events) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.Write(p)
}

// await waits for an event of the kind.
func (x *events) await(t *testing.T, kind httpclient.EventKind) (found httpclient.Event) {
	t.Helper()
	require.Eventually(t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, e := range x.all {
			if e.Kind == kind {
				found = e
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond, kind.String())
	return found
}

func (x *events) log() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

// A combination of options that may overload the service is logged when the Client is made.
func TestLoggerWarnsOfOptions(t *testing.T) {
	var x events
	logger := slog.New(slog.NewTextHandler(&x, &slog.HandlerOptions{Level: slog.LevelWarn}))
	httpclient.New(t.Context(), "web", httpclient.WithAddrs("192.0.2.1:80"), httpclient.WithLogger(logger),
		httpclient.WithRetry(httplayer.RetryPolicy{AttemptTimeout: time.Second}), httpclient.WithPolicy(balance.Policy{Picker: balance.Random()}))
	require.Equal(t, 1, strings.Count(x.log(), "a random picker makes the queues of endpoints uneven"), x.log())
	require.Contains(t, x.log(), "target=web per_attempt=1s")
}

// A target that is empty, an endpoint that is ejected, a request that is retried: all are reported and logged.
func TestEvents(t *testing.T) {
	var x events
	logger := slog.New(slog.NewTextHandler(&x, &slog.HandlerOptions{Level: slog.LevelDebug}))
	table := static.New(nil)
	web := httpclient.New(t.Context(), "web", httpclient.WithResolver(table), httpclient.WithEvents(x.add), httpclient.WithLogger(logger),
		httpclient.WithQueue(0, 0), httpclient.WithRetry(httplayer.RetryPolicy{MaxAttempts: 2}),
		httpclient.WithPolicy(balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3}}))
	down := x.await(t, httpclient.TargetDown)
	require.Error(t, down.Err)
	_, err := web.RoundTrip(get(t, "http://web/"))
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, x.await(t, httpclient.Rejected).Err, layer.ErrNotReady)

	bad := server(t, "bad", http.StatusServiceUnavailable)
	var set []resolve.Endpoint
	for _, addr := range []string{server(t, "ok", 0), server(t, "ok", 0), bad} {
		set = append(set, resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(addr)}})
	}
	table.Set("web", set...)
	x.await(t, httpclient.TargetUp)
	require.Eventually(t, func() bool { return len(readyEndpoints(web)) == 3 }, time.Minute, time.Millisecond)
	for range 20 {
		require.Equal(t, "ok", body(t, client(t, web), "http://web/"))
	}
	require.Equal(t, 2, x.await(t, httpclient.Retried).Attempts)
	ejected := x.await(t, httpclient.EndpointEjected)
	require.Equal(t, bad, ejected.Endpoint)
	require.ErrorContains(t, ejected.Err, "3 failures in a row")
	require.Eventually(t, func() bool {
		return strings.Contains(x.log(), `level=WARN msg="endpoint ejected" target=web endpoint=`+bad)
	}, time.Minute, time.Millisecond)
	for _, want := range []string{`level=WARN msg="target down"`, `level=DEBUG msg="request retried"`, `level=INFO msg="target up"`, "attempts=2"} {
		require.Contains(t, x.log(), want)
	}
	require.Panics(t, func() { httpclient.WithEvents(nil) })
	require.Panics(t, func() { httpclient.WithLogger(nil) })
}

// An endpoint that ends connections is reported with the failed request.
func TestEventsFailed(t *testing.T) {
	var x events
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	t.Cleanup(s.Close)
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithEvents(x.add))
	_, err := web.RoundTrip(post(t, "http://web/", "x"))
	require.Error(t, err)
	require.Equal(t, s.Listener.Addr().String(), x.await(t, httpclient.Failed).Endpoint)
}

// Each option for layers adds its layer, in the documented order.
func TestLayerOptions(t *testing.T) {
	var own atomic.Int64
	count := func(next httplayer.Service) httplayer.Service {
		return layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
			own.Add(1)
			return next.Call(ctx, r)
		})
	}
	firstOne := balance.Custom("first one", func(balance.PickRequest, []balance.Candidate) int { return 0 })
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(server(t, "ok", 0)),
		httpclient.WithLayer("first", count), httpclient.WithLayer("second", count), httpclient.WithHedge(httplayer.HedgePolicy{}),
		httpclient.WithQueue(10, time.Second), httpclient.WithLimit(5), httpclient.WithBreaker(layer.BreakerPolicy{}),
		httpclient.WithEndpointLimit(3), httpclient.WithPolicy(balance.Policy{Picker: firstOne}),
		httpclient.WithEvents(func(httpclient.Event) {}))
	require.Equal(t, "ok", body(t, client(t, web), "http://web/"))
	require.EqualValues(t, 2, own.Load())
	text := layer.Describe(web).String()
	at := 0
	for _, name := range []string{
		"client", "events", "first", "second", "response_header_timeout", "retry", "hedge", "queue", "limit", "balance", "pick=first one",
		"breaker", "limit", "endpoint ",
	} {
		i := strings.Index(text[at:], name)
		require.GreaterOrEqual(t, i, 0, "%s after %q in\n%s", name, text[:at], text)
		at += i + len(name)
	}
	for _, f := range []func(){
		func() { httpclient.WithQueue(-1, 0) }, func() { httpclient.WithQueue(1, 0) }, func() { httpclient.WithLimit(0) },
		func() { httpclient.WithEndpointLimit(0) }, func() { httpclient.WithLayer("x", nil) }, func() { httpclient.WithEndpointTLS(nil) },
		func() { httpclient.WithBreaker(layer.BreakerPolicy{MinSuccessRate: 2}) }, func() { httpclient.WithHedge(httplayer.HedgePolicy{Quantile: 2}) },
	} {
		require.Panics(t, f)
	}
}

// A connection exists before the first request.
func TestPreconnect(t *testing.T) {
	connected := make(chan struct{}, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connected <- struct{}{}
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	web := httpclient.New(t.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String()), httpclient.WithPreconnect())
	select {
	case <-connected:
	case <-time.After(time.Minute):
		t.Fatal("no connection")
	}
	require.Eventually(t, func() bool { return strings.Contains(layer.Describe(web).String(), "idle=1") }, time.Minute, time.Millisecond)
	require.Equal(t, "ok", body(t, client(t, web), "http://web/"))
	require.Empty(t, connected, "the request has used the connection")
}

// The configuration of TLS depends on the endpoint.
func TestEndpointTLS(t *testing.T) {
	plain := server(t, "plain", 0)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.TLS.ServerName) }))
	t.Cleanup(s.Close)
	trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
	secure := s.Listener.Addr().String()
	web := httpclient.New(t.Context(), "example.com:80", httpclient.WithAddrs(plain, secure),
		httpclient.WithPolicy(balance.Policy{Picker: balance.RoundRobin()}), httpclient.WithEndpointTLS(func(target discover.Target) *tls.Config {
			if target.Endpoint.Addr.String() == plain {
				return nil
			}
			return trusting
		}))
	require.NoError(t, web.WaitReady(t.Context()))
	require.Eventually(t, func() bool { return len(readyEndpoints(web)) == 2 }, time.Minute, time.Millisecond)
	got := map[string]bool{}
	for range 10 {
		got[body(t, client(t, web), "http://web/")] = true
	}
	require.Equal(t, map[string]bool{"plain": true, "example.com": true}, got)
}
