package meters_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
)

// shownFor holds a series to be shown for nearly a minute from now, and no more
// after that.
func shownFor(t *testing.T, m *meters.Meters, series ...string) {
	t.Helper()
	time.Sleep(59 * time.Second)
	for _, s := range series {
		require.NotEmpty(t, lines(t, m, s), s)
	}
	time.Sleep(2 * time.Second)
	for _, s := range series {
		require.Empty(t, lines(t, m, s), s)
	}
}

// value is that of the one series of a name.
func value(t *testing.T, m *meters.Meters, series string) string {
	t.Helper()
	found := lines(t, m, series+"{")
	require.Len(t, found, 1, series)
	return found[0][strings.LastIndexByte(found[0], ' ')+1:]
}

// An endpoint that is gone is shown for as long as a stream of it lasts, and
// counts its end.
func TestStreamsThatOutliveTheirEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, gone := context.WithCancel(t.Context())
		made := func(ctx context.Context) httplayer.Service {
			return m.Endpoint(ctx, meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
				return response(200, "x"), nil
			}})
		}
		call := func(svc httplayer.Service) (end func()) {
			rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
			require.NoError(t, err)
			return func() { require.NoError(t, rsp.Body.Close()) }
		}
		first := made(ctx)
		one, two := call(first), call(first)
		gone()
		time.Sleep(time.Hour)
		require.Equal(t, "2", value(t, m, "requests_in_flight"))
		require.Equal(t, "2", value(t, m, "request_total"))
		one()
		time.Sleep(time.Hour)
		require.Equal(t, "1", value(t, m, "response_total"))

		again, left := context.WithCancel(t.Context()) // it goes on from there
		three := call(made(again))
		require.Equal(t, "2", value(t, m, "requests_in_flight"))
		two()
		time.Sleep(30 * time.Second)
		require.Equal(t, "1", value(t, m, "requests_in_flight"))
		left()
		three()
		require.Equal(t, "3", value(t, m, "response_total"))
		shownFor(t, m, "requests_in_flight", "request_total", "response_total", "response_latency_ms", "refusal_total")
	})
}

// Neither a refusal nor a panic keeps anything.
func TestWhatDoesNotLastKeepsNoSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, gone := context.WithCancel(t.Context())
		answers := []func() (*http.Response, error){
			func() (*http.Response, error) { return nil, &layer.Error{Layer: "limit", Kind: layer.ErrNotReady} },
			func() (*http.Response, error) { return nil, context.Canceled },
			func() (*http.Response, error) { panic("a test's") },
		}
		for _, answer := range answers {
			svc := m.Endpoint(ctx, meters.Inbound, nil)(answering{call: func(*http.Request) (*http.Response, error) { return answer() }})
			func() {
				defer func() { _ = recover() }()
				_, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
				require.Error(t, err)
			}()
		}
		gone()
		shownFor(t, m, "requests_in_flight", "request_total", "refusal_total")
	})
}

// A connection outlives the endpoint that it was made for.
func TestConnectionsThatOutliveTheirEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, gone := context.WithCancel(t.Context())
		meter := tcplayer.NewMeter(m.Transport(ctx, meters.Outbound, meters.Destination, nil))
		near, far := net.Pipe()
		conn := meter.Conn(near)
		gone()
		time.Sleep(time.Hour)
		require.Equal(t, "1", value(t, m, "tcp_open_connections"))
		go func() {
			_, _ = far.Write([]byte("hello"))
			far.Close()
		}()
		_, err := conn.Read(make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		for series, want := range map[string]string{
			"tcp_open_connections": "0", "tcp_open_total": "1", "tcp_close_total": "1", "tcp_read_bytes_total": "5",
		} {
			require.Equal(t, want, value(t, m, series), series)
		}
		shownFor(t, m, "tcp_open_connections", "tcp_open_total", "tcp_close_total", "tcp_read_bytes_total")
	})
}

// So does a connection that was forwarded to a destination by its old name.
func TestConnectionsThatOutliveTheirName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		counts, hold := m.Routes(t.Context(), meters.Outbound, asked), make(chan struct{})
		svc := counts.Forwarded(layer.Func[net.Conn, tcplayer.ByteCount](func(context.Context, net.Conn) (tcplayer.ByteCount, error) {
			<-hold
			return tcplayer.ByteCount{}, nil
		}))
		done := make(chan error, 1)
		go func() {
			_, err := svc.Call(t.Context(), nil)
			done <- err
		}()
		synctest.Wait()
		counts.OnProfile("new.shop.svc:80", &profiles.Profile{})
		time.Sleep(time.Hour)
		require.Equal(t, "1", value(t, m, "outbound_tcp_route_open_total"))
		close(hold)
		require.NoError(t, <-done)
		closed := strings.Join(lines(t, m, "outbound_tcp_route_close_total"), "\n")
		require.Contains(t, closed, `error="",`)
		require.Contains(t, closed, "} 1")
		shownFor(t, m, "outbound_tcp_route_open_total", "outbound_tcp_route_close_total")
	})
}

// A route that the profile has no more is shown for as long as its requests last,
// and its tries with it.
func TestStreamsThatOutliveTheirRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		f, hold := follow(t.Context(), m), make(chan struct{})
		f.answer = func(*http.Request) (*http.Response, error) { <-hold; return response(200, "x"), nil }
		f.say(&profiles.Profile{Name: named, Routes: []profiles.Route{routed("watch")}})
		done := make(chan error, 1)
		go func() { done <- f.get(t, "/watch") }()
		synctest.Wait()
		f.say(&profiles.Profile{Name: named})
		time.Sleep(time.Hour)
		close(hold)
		require.NoError(t, <-done)
		ofWatch := []string{
			"route_request_total", "route_response_total", "route_response_latency_ms_count",
			"route_actual_request_total", "route_actual_response_total",
		}
		for _, series := range ofWatch {
			found := ""
			for _, line := range lines(t, m, series+"{") {
				if strings.Contains(line, `rt_route="watch"`) && !strings.Contains(line, `classification="failure"`) {
					found += line
				}
			}
			require.Contains(t, found, "} 1", series)
		}
		time.Sleep(59 * time.Second)
		require.Contains(t, strings.Join(lines(t, m, "route_"), "\n"), `rt_route="watch"`)
		time.Sleep(2 * time.Second)
		require.NotContains(t, strings.Join(lines(t, m, "route_"), "\n"), `rt_route="watch"`)
	})
}

// A balancer lives in a cache, and so for as long as the streams through it: its
// series do, too.
func TestStreamsKeepTheirBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		concretes := layer.NewCache(ctx, func(ctx context.Context, target string) httplayer.Service {
			_, queue := m.Balancer(ctx, "http", target)
			return httplayer.NewStack(layer.WithMetrics[*http.Response](queue)).Queue(1, time.Second).
				Service(answering{call: func(*http.Request) (*http.Response, error) { return response(200, "x"), nil }})
		}, layer.CachePolicy{IdleTimeout: time.Second}, layer.WithCompletion(httplayer.Completion))
		rsp, err := concretes.Service("web.example:80").Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
		require.NoError(t, err)
		const series = "outbound_http_balancer_queue_length"
		time.Sleep(time.Hour)
		require.Equal(t, "0", value(t, m, series))
		require.NoError(t, rsp.Body.Close())
		time.Sleep(59 * time.Second)
		require.NotEmpty(t, lines(t, m, series))
		time.Sleep(10 * time.Second)
		require.Empty(t, lines(t, m, series))
		cancel()
		synctest.Wait()
	})
}

// Whoever passes a response on may be changing its header when the caller
// leaves.
func TestTheHeaderIsNotReadAtTheEnd(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
		rsp := response(200, "x")
		rsp.Header.Set("Content-Type", "application/grpc")
		return rsp, nil
	}})
	ctx, leave := context.WithCancel(t.Context())
	rsp, err := svc.Call(ctx, httptest.NewRequest(http.MethodGet, "http://web/", nil))
	require.NoError(t, err)
	var counted atomic.Bool
	var changing sync.WaitGroup
	changing.Go(func() {
		for !counted.Load() {
			rsp.Header.Set("X-Hop", "1")
			rsp.Header.Del("X-Hop")
		}
	})
	leave()
	require.Eventually(t, func() bool { return len(lines(t, m, "response_total{")) > 0 }, 30*time.Second, time.Millisecond)
	counted.Store(true)
	changing.Wait()
	require.NoError(t, rsp.Body.Close())
}

// A service may have nothing to say, against the rules; that is counted too.
func TestNoResponseIsCounted(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
		return nil, nil
	}})
	_, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
	require.NoError(t, err)
	require.Equal(t, "1", value(t, m, "response_total"))
	require.Equal(t, "0", value(t, m, "requests_in_flight"))
}
