package sidecar_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// failing is an application that fails the first request with fail, responds to later ones with
// their bodies, and counts requests.
func failing(t testing.TB, fail http.HandlerFunc) (addr string, came *atomic.Int64) {
	t.Helper()
	came = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := came.Add(1) == 1
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
		case first:
			fail(w, r)
		default:
			_, _ = w.Write(body)
		}
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), came
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

// retryable returns a profile with one route, which is retryable.
func retryable(classes ...*destination.ResponseClass) *destination.DestinationProfile {
	return &destination.DestinationProfile{
		FullyQualifiedName: "web.example",
		Routes: []*destination.Route{{
			Condition:       &destination.RequestMatch{Match: &destination.RequestMatch_Path{Path: &destination.PathMatch{Regex: "/again.*"}}},
			ResponseClasses: classes, IsRetryable: true,
		}},
		RetryBudget: &destination.RetryBudget{RetryRatio: 0.1, MinRetriesPerSecond: 1, Ttl: durationpb.New(10 * time.Second)},
	}
}

// profiled returns a proxy whose controller has the profile p for the application.
func profiled(t testing.TB, app string, p *destination.DestinationProfile) *testProxy {
	t.Helper()
	m := &mesh{ctl: newScript(t)}
	m.ctl.profile(service, p)
	m.answer(t, endpointAt(app))
	return newTestProxy(t, m.ctl.addr, func(c *sidecar.Config) { c.Control.ProfileInitial = soon }, toService)
}

func coded(least, most uint32, failure bool) *destination.ResponseClass {
	return &destination.ResponseClass{IsFailure: failure, Condition: &destination.ResponseMatch{
		Match: &destination.ResponseMatch_Status{Status: &destination.HttpStatusRange{Min: least, Max: most}},
	}}
}

// Requests with small bodies are retried with any method, with or without a length. Bodies of more
// than 64 KiB, requests without a route, and responses that an earlier class marks as successes are
// not.
func TestC1C3C4Retries(t *testing.T) {
	large := strings.Repeat("x", 64<<10+1)
	for name, tt := range map[string]struct {
		method, path, body string
		chunks             bool
		classes            []*destination.ResponseClass
		again              bool
	}{
		"C1 GET":                    {http.MethodGet, "/again", "", false, nil, true},
		"C3 POST":                   {http.MethodPost, "/again", "hello", false, nil, true},
		"C3 PUT":                    {http.MethodPut, "/again", "hello", false, nil, true},
		"C3 POST without a length":  {http.MethodPost, "/again", "hello", true, nil, true},
		"C3 PUT without a length":   {http.MethodPut, "/again", "hello", true, nil, true},
		"C4 too large":              {http.MethodPost, "/again", large, false, nil, false},
		"C4 too large, in chunks":   {http.MethodPost, "/again", large, true, nil, false},
		"C4 another route":          {http.MethodGet, "/once", "", false, nil, false},
		"C4 an earlier success":     {http.MethodGet, "/again", "", false, []*destination.ResponseClass{coded(500, 599, false), coded(503, 503, true)}, false},
		"C4 the success comes late": {http.MethodGet, "/again", "", false, []*destination.ResponseClass{coded(503, 503, true), coded(500, 599, false)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			app, came := failing(t, unavailable)
			var body io.Reader = http.NoBody
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			if tt.chunks {
				body = io.NopCloser(body)
			}
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://web.example"+tt.path, body)
			require.NoError(t, err)
			rsp, err := profiled(t, app, retryable(tt.classes...)).client(t).Do(req)
			require.NoError(t, err)
			defer rsp.Body.Close()
			got, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			if !tt.again {
				assert.Equal(t, http.StatusServiceUnavailable, rsp.StatusCode)
				assert.EqualValues(t, 1, came.Load())
				return
			}
			assert.Equal(t, http.StatusOK, rsp.StatusCode)
			assert.Equal(t, tt.body, string(got))
			assert.EqualValues(t, 2, came.Load())
		})
	}
}

// Without a valid budget, requests are not retried.
func TestC5RetryWithoutBudget(t *testing.T) {
	for name, budget := range map[string]*destination.RetryBudget{
		"none":           nil,
		"ttl":            {RetryRatio: 0.1, MinRetriesPerSecond: 1, Ttl: durationpb.New(1000 * time.Second)},
		"ratio":          {RetryRatio: 10_000, MinRetriesPerSecond: 1, Ttl: durationpb.New(10 * time.Second)},
		"negative ratio": {RetryRatio: -1, MinRetriesPerSecond: 1, Ttl: durationpb.New(10 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			app, came := failing(t, unavailable)
			p := retryable()
			p.RetryBudget = budget
			status, _ := get(t, profiled(t, app, p).client(t), "http://web.example/again")
			assert.Equal(t, http.StatusServiceUnavailable, status)
			assert.EqualValues(t, 1, came.Load())
		})
	}
}

// The gRPC status may be in headers or trailers. A body in many frames arrives completely.
func TestC8GRPCRetriesByStatus(t *testing.T) {
	head := func(code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Grpc-Status", code) }
	}
	tail := func(code string, frames ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, f := range frames {
				say(w, f)
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", code)
		}
	}
	for name, tt := range map[string]struct {
		first http.HandlerFunc
		came  int64
		body  string
	}{
		"failure in headers":        {head("14"), 2, "hello"},
		"failure in trailers":       {tail("14"), 2, "hello"},
		"success in headers":        {head("0"), 1, ""},
		"success in trailers":       {tail("0", "fine"), 1, "fine"},
		"success after many frames": {tail("0", "one", "two", "three"), 1, "onetwothree"},
	} {
		t.Run(name, func(t *testing.T) {
			app, came := failing(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				tt.first(w, r)
			})
			tn := profiled(t, app, retryable())
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web.example/again", strings.NewReader("hello"))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/grpc")
			rsp, err := h2Client(t, tn.Addr).Do(req)
			require.NoError(t, err)
			defer rsp.Body.Close()
			body, err := io.ReadAll(rsp.Body)
			require.NoError(t, err)
			assert.Equal(t, tt.body, string(body))
			assert.Equal(t, tt.came, came.Load())
		})
	}
}
