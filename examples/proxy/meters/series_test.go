package meters_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
)

// values returns the values of all series with this name.
func values(t testing.TB, m *meters.Meters, name string) (found []string) {
	t.Helper()
	for _, line := range lines(t, m, name+"{") {
		found = append(found, line[strings.LastIndexByte(line, ' ')+1:])
	}
	return found
}

// A series expires after the retention time, which begins at the first scrape after its last write.
// The next write begins at 0 (H3).
func TestSeriesExpire(t *testing.T) {
	type step struct {
		after time.Duration
		does  string
	}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			after: time.Duration(rapid.IntRange(0, 90).Draw(rt, "after")) * time.Second,
			does:  rapid.SampledFrom([]string{"write", "scrape", "scrape"}).Draw(rt, "does"),
		}
	}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		drawn := steps.Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			m := meters.New(meters.Config{RetainIdle: time.Minute})
			opened := m.Transport(meters.Inbound, meters.Destination, nil).Opened
			count, shown, written, quiet := 0, false, false, time.Time{}
			for _, s := range drawn {
				time.Sleep(s.after)
				if s.does == "write" {
					if !shown {
						count, shown = 0, true
					}
					opened.Add(1)
					count, written = count+1, true
					continue
				}
				found := values(t, m, "tcp_open_total")
				switch {
				case !shown:
				case written:
					written, quiet = false, time.Now()
				case time.Since(quiet) >= time.Minute:
					shown = false
				}
				if shown {
					require.Equal(t, []string{strconv.Itoa(count)}, found, "%v", drawn)
				} else {
					require.Empty(t, found, "%v", drawn)
				}
			}
		})
	})
}

// Streams and connections may outlive their endpoint. Their gauges are shown until they end, and
// their ends count.
func TestSeriesOfLongStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		svc := m.Endpoint(ctx, meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
			return response(200, "x"), nil
		}})
		rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
		require.NoError(t, err)
		near, far := net.Pipe()
		defer far.Close()
		conn := tcplayer.NewMeter(m.Transport(meters.Outbound, meters.Destination, nil)).Conn(near)
		cancel()
		for range 3 {
			time.Sleep(time.Hour)
			require.Equal(t, []string{"1"}, values(t, m, "requests_in_flight"))
			require.Equal(t, []string{"1"}, values(t, m, "tcp_open_connections"))
		}
		require.Empty(t, lines(t, m, "request_total"))
		require.NoError(t, rsp.Body.Close())
		require.NoError(t, conn.Close())
		for name, want := range map[string]string{
			"requests_in_flight": "0", "response_total": "1", "tcp_open_connections": "0", "tcp_close_total": "1",
		} {
			require.Equal(t, []string{want}, values(t, m, name), name)
		}
		time.Sleep(time.Minute)
		require.Empty(t, append(lines(t, m, "tcp_"), lines(t, m, "requests_in_flight")...))
	})
}

// A stream that outlives its profile counts with that profile's labels.
func TestRoutesLongStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		f, hold, n := follow(t.Context(), m), make(chan struct{}), 0
		f.answer = func(*http.Request) (*http.Response, error) {
			if n++; n == 1 {
				return response(503, ""), nil
			}
			<-hold
			return response(200, "x"), nil
		}
		f.set(&profiles.Profile{
			Name: named, RetryBudget: &profiles.RetryBudget{MinPerSecond: 10, TTL: 5 * time.Second},
			Routes: []profiles.Route{routed("watch", func(r *profiles.Route) { r.Retry = &profiles.Retry{} })},
		})
		done := make(chan error, 1)
		go func() { done <- f.get(t, "/watch") }()
		time.Sleep(time.Second)
		f.set(&profiles.Profile{Name: "new.shop.svc.cluster.local"})
		for range 2 {
			time.Sleep(time.Hour)
			_ = scrape(t, m)
		}
		close(hold)
		require.NoError(t, <-done)
		suffix := webService + "," + ofRoute("profile", "watch") + "} 1"
		for name, labels := range map[string]string{
			"outbound_http_route_request_statuses_total":          `{error="",hostname="",http_status="200",`,
			"outbound_http_route_retry_successes_total":           `{hostname="",`,
			"outbound_http_route_backend_response_statuses_total": `error="",http_status="200",`,
		} {
			require.Contains(t, strings.Join(lines(t, m, name), "\n"), labels+suffix, name)
		}
	})
}

// The gauge for a balancer's endpoints ends with the balancer.
func TestSeriesOfEndedBalancer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		b, _ := m.Balancer(ctx, "http", "web.example:80", meters.Parent{})
		ready := b.Endpoints.With("endpoint_state", "ready")
		ready.Set(3)
		const name = "outbound_http_balancer_endpoints"
		require.Equal(t, []string{"3"}, values(t, m, name))
		time.Sleep(time.Hour)
		require.Equal(t, []string{"3"}, values(t, m, name))
		cancel()
		synctest.Wait()
		ready.Set(2)
		require.Empty(t, lines(t, m, name))
	})
}

// Without scrapes, series expire when others begin.
func TestSeriesExpireWithoutScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		count := m.TCPErrors(meters.Outbound)
		for i := range 5000 {
			count(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), syscall.ECONNREFUSED)
			time.Sleep(time.Second)
		}
		found := len(lines(t, m, "outbound_tcp_errors_total"))
		require.Greater(t, found, 60)
		require.Less(t, found, 100)
	})
}
