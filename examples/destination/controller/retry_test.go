package controller

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/linkerd"
)

// TestRetriesOfClients counts the requests that a server which always fails
// receives for one request of a client that follows the profile.
func TestRetriesOfClients(t *testing.T) {
	for _, tt := range []struct {
		name, route, method string
		retried             bool
	}{
		{"POST", "match: {path: /.*}, retryable: true", "POST", false},
		{"GET", "match: {path: /.*}, retryable: true", "GET", true},
		{"DELETE", "match: {path: /.*}, retryable: true", "DELETE", true},
		{"POST matched by method", "match: {method: POST}, retryable: true", "POST", false},
		{"GET matched by method", "match: {method: GET}, retryable: true", "GET", true},
		{"POST, non-idempotent", "match: {path: /.*}, retryable: true, retry_non_idempotent: true", "POST", true},
		{"GET, not retryable", "match: {path: /.*}", "GET", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := Parse("f", []byte("destinations: {'pay.test:80': {profile: {"+
				"retry_budget: {min_per_second: 1, ttl: 2s}, routes: [{name: pay, labels: {team: a}, "+tt.route+"}]}}}"))
			require.NoError(t, err)
			c := New(nil)
			require.NoError(t, c.Set(cfg))
			msg := c.entries["pay.test:80"].profile
			for _, r := range msg.GetRoutes() {
				require.Equal(t, map[string]string{"route": "pay", "team": "a"}, r.GetMetricsLabels())
			}

			var received atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				received.Add(1)
				w.WriteHeader(http.StatusInternalServerError)
			}))
			defer server.Close()
			endpoint := httplayer.NewEndpoint(t.Context(), server.Listener.Addr().String())
			var source profiles.Static
			for p, err := range linkerd.New(conn{msg}).Watch(t.Context(), "pay.test:80") {
				require.NoError(t, err)
				source.Set("pay.test:80", p)
				break
			}
			config := profiles.Config{Target: "pay.test:80", Source: &source, InitialWait: time.Minute}
			router := profiles.New(t.Context(), config, httplayer.HTTP{},
				func(string) httplayer.Service { return endpoint },
				profiles.WithRouteLayers(httplayer.HTTP{}))
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://pay.test/orders", nil)
			require.NoError(t, err)
			rsp, err := httplayer.RoundTripper(router).RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, tt.retried, received.Load() > 1, "%d requests", received.Load())
		})
	}
}
