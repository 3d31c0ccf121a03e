package sidecar_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// flaky is a backend that responds to the first request for a path with 503, and to later ones with
// the request body. On /slow it responds only after the request is canceled.
func flaky(t *testing.T) (addr string, came *atomic.Int64) {
	t.Helper()
	came = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/slow" { // it need not come as far as that in its time
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/late" { // later than the limit of an attempt
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
				_, _ = w.Write(body)
			}
			return
		}
		switch n := came.Add(1); {
		case r.URL.Path == "/never" || n%2 == 1:
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), came
}

// routed returns the controller's configuration for a destination with routes.
func routed(t *testing.T, addr string) controller.Config {
	t.Helper()
	cfg, err := controller.Parse("test.yaml", []byte(`
destinations:
  web.example:80:
    endpoints: [{addr: "`+addr+`"}]
    profile:
      routes:
        - {name: slow, match: {path: /slow}, timeout: 50ms, retryable: true}
        - {name: once, match: {path: /once}}
        - {name: any, match: {path: /.*}, retryable: true, retry_non_idempotent: true}
      retry_budget: {ratio: 0.1, min_per_second: 1, ttl: 60s}
`))
	require.NoError(t, err)
	return cfg
}

func TestRouteLayers(t *testing.T) {
	addr, came := flaky(t)
	ctl, _ := serveController(t, "127.0.0.1:0", routed(t, addr))
	tn := newTestProxy(t, ctl)
	c := tn.client(t)

	status, _ := get(t, c, "http://web.example/again")
	require.Equal(t, http.StatusOK, status, "the second try succeeded")
	require.EqualValues(t, 2, came.Load())

	rsp, err := c.Post("http://web.example/again", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, http.StatusOK, rsp.StatusCode)
	require.Equal(t, "hello", string(body), "a body is sent again")
	require.EqualValues(t, 4, came.Load())

	status, _ = get(t, c, "http://web.example/once")
	require.Equal(t, http.StatusServiceUnavailable, status, "the route is not retryable")
	require.EqualValues(t, 5, came.Load())

	rsp, err = c.Get("http://web.example/slow")
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, http.StatusGatewayTimeout, rsp.StatusCode)
	require.Contains(t, rsp.Header.Get("L5d-Proxy-Error"), "response header timeout")
	require.True(t, rsp.Close, "the client is asked to close its connection")
	require.EqualValues(t, 5, came.Load())

	// There are 60 retries for 60 seconds, and one for every ten requests. Two are spent.
	status, _ = get(t, c, "http://web.example/never")
	require.Equal(t, http.StatusServiceUnavailable, status, "the last response as it is")
	require.EqualValues(t, 5+1+58, came.Load())

	const every = `direction="outbound",dst="web.example:80",rt_route="any"`
	tn.shows(t,
		`route_request_total{`+every+`} 3`,
		`route_response_total{classification="success",`+every+`} 2`,
		`route_response_total{classification="failure",`+every+`} 1`,
		`route_actual_request_total{`+every+`} 63`,
		`route_actual_response_total{classification="failure",`+every+`} 61`,
		`route_retryable_total{`+every+`} 60`,
		`route_retryable_total{`+every+`,skipped="no_budget"} 1`,
		`route_timeout_total{direction="outbound",dst="web.example:80",limit="response_header",rt_route="slow"} 1`,
		`route_response_total{classification="failure",direction="outbound",dst="web.example:80",error="timeout",rt_route="slow"} 1`,
	)
	_, tree := get(t, h1Client(t, tn.Admin), "http://"+tn.Admin+"/stack")
	require.Contains(t, tree, "retry_budget=0")
}
