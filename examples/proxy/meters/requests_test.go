package meters_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/internal/conformance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestMain(m *testing.M) {
	conformance.Shorten()
	debug.SetGCPercent(800) // because the heap is small
	goleak.VerifyTestMain(m)
}

// scrape returns the metrics that Prometheus scrapes.
func scrape(t testing.TB, m *meters.Meters) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.True(t, strings.HasSuffix(w.Body.String(), "\n# EOF\n"))
	return w.Body.String()
}

// lines returns the series whose names begin with prefix.
func lines(t testing.TB, m *meters.Meters, prefix string) (found []string) {
	t.Helper()
	for line := range strings.Lines(scrape(t, m)) {
		if strings.HasPrefix(line, prefix) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// answering is a service that returns a given response.
type answering struct {
	layer.Service[*http.Request, *http.Response]
	call func(*http.Request) (*http.Response, error)
}

func (a answering) Ready(context.Context) error { return nil }
func (a answering) Call(_ context.Context, r *http.Request) (*http.Response, error) {
	return a.call(r)
}

func endpointLabels() meters.Labels {
	return meters.Labels{"authority": "web.example:80"}.
		With(meters.Target(netip.MustParseAddrPort("10.0.0.1:8080"))).
		With(meters.ServerTLS("web.identity")).
		With(meters.Prefixed("dst", map[string]string{"pod": `p"o\d`, "zone-a": "z\n", "none": ""}))
}

const endpointText = `authority="web.example:80",%sdirection="outbound",dst_none="",dst_pod="p\"o\\d",dst_zone_a="z\n",%sserver_id="web.identity"`

func response(status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

func TestEndpointCountsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		grpc := response(200, "x", "Content-Type", "application/grpc")
		grpc.Trailer = http.Header{"Grpc-Status": {"14"}}
		answers := []func() (*http.Response, error){
			func() (*http.Response, error) { time.Sleep(250 * time.Millisecond); return response(200, "hello"), nil },
			func() (*http.Response, error) { return response(503, "no"), nil },
			func() (*http.Response, error) { return grpc, nil },
			func() (*http.Response, error) {
				return response(200, "", "Content-Type", "application/grpc", "Grpc-Status", "99"), nil
			},
			func() (*http.Response, error) { return nil, &layer.Error{Layer: "endpoint", Err: syscall.ECONNRESET} },
			func() (*http.Response, error) { return nil, &layer.Error{Layer: "limit", Kind: layer.ErrNotReady} },
		}
		svc := m.Endpoint(ctx, meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
			next := answers[0]
			answers = answers[1:]
			return next()
		}})
		for len(answers) > 0 {
			rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
			if err != nil {
				continue
			}
			require.Contains(t, strings.Join(lines(t, m, "requests_in_flight"), ""), "} 1")
			_, err = io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		text := func(name, early, late, rest string) string {
			s := name + "{" + endpointText
			s = strings.Replace(strings.Replace(s, "%s", early, 1), "%s", late, 1)
			return s + rest
		}
		const target = `,target_addr="10.0.0.1:8080",target_ip="10.0.0.1",target_port="8080",tls="true"} `
		require.Equal(t, []string{text("request_total", "", "", target+"5")}, lines(t, m, "request_total"))
		require.Equal(t, []string{text("rejection_total", "", "", target+"1")}, lines(t, m, "rejection_total"))
		require.Equal(t, []string{text("requests_in_flight", "", "", target+"0")}, lines(t, m, "requests_in_flight"))
		const success, failure = `classification="success",`, `classification="failure",`
		require.ElementsMatch(t, []string{
			text("response_total", success, "", `,status_code="200"`+target+"1"),
			text("response_total", failure, "", `,status_code="503"`+target+"1"),
			text("response_total", failure, `grpc_status="14",`, `,status_code="200"`+target+"1"),
			text("response_total", success, `grpc_status="2",`, `,status_code="200"`+target+"1"),
			text("response_total", failure, `error="i/o",`, target+"1"),
		}, lines(t, m, "response_total"))
		buckets := strings.Join(lines(t, m, "response_latency_ms_bucket"), "\n")
		require.Regexp(t, `status_code="200".*le="200"} 2`, buckets)
		require.Regexp(t, `status_code="200".*le="500"} 3`, buckets)
		require.Regexp(t, `status_code="200".*le="\+Inf"} 3`, buckets)
		require.Equal(t, 16*3, strings.Count(buckets, "\n")+1, "16 buckets for each status and for no status")
	})
}

// A canceled request counts as a success.
func TestEndpointCanceledRequest(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Inbound, nil)(answering{call: func(r *http.Request) (*http.Response, error) {
		return nil, context.Canceled
	}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := svc.Call(ctx, httptest.NewRequest(http.MethodGet, "/", nil))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{`response_total{classification="success",direction="inbound"} 1`}, lines(t, m, "response_total"))
}

// Statuses without three digits share one series.
func TestEndpointInvalidStatuses(t *testing.T) {
	m := meters.New(meters.Config{})
	status := 0
	svc := m.Endpoint(t.Context(), meters.Inbound, nil)(answering{call: func(*http.Request) (*http.Response, error) {
		return response(status, ""), nil
	}})
	for _, status = range []int{0, -7, 99, 1000, 1_000_001, 1_000_002, 100, 999} {
		rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
	}
	for _, name := range []string{"response_total", "response_latency_ms_count"} {
		found := lines(t, m, name)
		text := strings.Join(found, "\n")
		for _, want := range []string{`status_code="100"`, `status_code="999"`, `status_code="unknown"`} {
			require.Contains(t, text, want)
		}
		for _, line := range found {
			require.Regexp(t, `status_code="(100|999|unknown)"`, line)
		}
	}
}

// A body's reader may write the trailers while the response ends with an error. The race detector
// would report it if they were read then.
func TestEndpointTrailersOfBrokenResponse(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Inbound, nil)(answering{call: func(*http.Request) (*http.Response, error) {
		rsp := response(http.StatusOK, "")
		rsp.Header = http.Header{"Content-Type": {"application/grpc"}}
		return rsp, nil
	}})
	rsp, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodPost, "/", nil))
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- rsp.Body.Close() }()
	rsp.Trailer = http.Header{"Grpc-Status": {"14"}}
	require.NoError(t, <-closed)
	require.NotContains(t, strings.Join(lines(t, m, "response_total"), "\n"), "grpc_status")
}

func TestEndpointPanic(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Inbound, nil)(answering{call: func(*http.Request) (*http.Response, error) { panic("no") }})
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil)) })
	require.Equal(t, []string{`requests_in_flight{direction="inbound"} 0`}, lines(t, m, "requests_in_flight"))
	require.Equal(t, []string{`response_total{classification="failure",direction="inbound",error="unexpected"} 1`}, lines(t, m, "response_total"))
}

func TestEndpointConforms(t *testing.T) {
	layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
		New: func(ctx context.Context, next httplayer.Service) httplayer.Service {
			return meters.New(meters.Config{}).Endpoint(ctx, meters.Outbound, endpointLabels())(next)
		},
		Request:  func(int) *http.Request { return httptest.NewRequest(http.MethodPost, "http://web/", nil) },
		Response: func(int) *http.Response { return &http.Response{StatusCode: 200, ContentLength: -1} },
	})
}

// sample matches a line in Prometheus's text format.
var sample = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*")*\})? \S+$`)

// Labels from discovery are escaped (H4).
func TestLabelEscape(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		labels := rapid.MapOfN(rapid.String(), rapid.OneOf(rapid.String(), rapid.StringMatching(`[,"\\\n{}]*`), rapid.Just("\xff")), 0, 4).Draw(r, "labels")
		m := meters.New(meters.Config{})
		tr := m.Transport(meters.Outbound, meters.Destination, meters.Labels(labels))
		tr.Opened.Add(1)
		for _, line := range lines(t, m, "tcp_") {
			if !sample.MatchString(line) {
				r.Fatalf("%q of %q", line, labels)
			}
		}
		if len(lines(t, m, "tcp_open_total")) != 1 {
			r.Fatalf("%q: %q", labels, lines(t, m, "tcp_open_total"))
		}
	})
}

var errOther = errors.New("other")

func BenchmarkEndpoint(b *testing.B) {
	m := meters.New(meters.Config{})
	rsp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	next := answering{call: func(*http.Request) (*http.Response, error) { return rsp, nil }}
	svc := m.Endpoint(b.Context(), meters.Outbound, endpointLabels())(next)
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(b.Context(), req)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			ctx := context.Background()
			for pb.Next() {
				_, _ = svc.Call(ctx, req)
			}
		})
	})
}

// Other layers may change a response's header while the caller leaves.
func TestEndpointDoesNotReadHeaderAtEnd(t *testing.T) {
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

// A nil response without an error counts as a response.
func TestEndpointNilResponse(t *testing.T) {
	m := meters.New(meters.Config{})
	svc := m.Endpoint(t.Context(), meters.Outbound, endpointLabels())(answering{call: func(*http.Request) (*http.Response, error) {
		return nil, nil
	}})
	_, err := svc.Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://web/", nil))
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, values(t, m, "response_total"))
	require.Equal(t, []string{"0"}, values(t, m, "requests_in_flight"))
}
