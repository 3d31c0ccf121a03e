package file_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/profiles/file"
)

// TestRetriesOfMethods counts the requests that a server which always
// fails receives for one request of a client.
func TestRetriesOfMethods(t *testing.T) {
	short := func(retry string) string {
		return "{target: pay.default.svc.cluster.local, routes: [{match: {pathPrefix: /}, maxRetries: 2, " + retry + "}]}"
	}
	const serviceProfile = `{apiVersion: linkerd.io/v1alpha2, kind: ServiceProfile, metadata: {name: pay.default.svc.cluster.local},
spec: {routes: [{name: pay, condition: {pathRegex: /.*}, isRetryable: true}], retryBudget: {retryRatio: 0.1, minRetriesPerSecond: 1, ttl: 2s}}}`
	for _, tt := range []struct {
		name, yaml, method, key string
		want                    int64
	}{
		{"POST", short("retry: true"), "POST", "", 1},
		{"PATCH", short("retry: true"), "PATCH", "", 1},
		{"POST with a key", short("retry: true"), "POST", "order-1", 3},
		{"GET", short("retry: true"), "GET", "", 3},
		{"PUT", short("retry: true"), "PUT", "", 3},
		{"DELETE", short("retry: true"), "DELETE", "", 3},
		{"POST, nonIdempotent", short("retry: {nonIdempotent: true}"), "POST", "", 3},
		{"GET, nonIdempotent", short("retry: {nonIdempotent: true}"), "GET", "", 3},
		{"POST, nonIdempotent is false", short("retry: {nonIdempotent: false}"), "POST", "", 1},
		{"GET, nonIdempotent is false", short("retry: {nonIdempotent: false}"), "GET", "", 3},
		{"GET, no retry", short("retry: false"), "GET", "", 1},
		{"POST, linkerd's isRetryable", serviceProfile, "POST", "", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var received atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				received.Add(1)
				w.WriteHeader(http.StatusInternalServerError)
			}))
			defer server.Close()
			path := filepath.Join(t.TempDir(), "pay.yaml")
			require.NoError(t, os.WriteFile(path, []byte(tt.yaml), 0o600))

			endpoint := httplayer.NewEndpoint(t.Context(), server.Listener.Addr().String())
			config := profiles.Config{Target: "pay.default.svc.cluster.local:80", Source: file.New(path), InitialWait: time.Minute}
			router := profiles.New(t.Context(), config, httplayer.HTTP{},
				func(string) httplayer.Service { return endpoint },
				profiles.WithRouteLayers(httplayer.HTTP{}))
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://pay/orders", strings.NewReader("one"))
			require.NoError(t, err)
			if tt.key != "" {
				req.Header.Set("Idempotency-Key", tt.key)
			}
			rsp, err := httplayer.RoundTripper(router).RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, http.StatusInternalServerError, rsp.StatusCode)
			require.Equal(t, tt.want, received.Load())
		})
	}
}
