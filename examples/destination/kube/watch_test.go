package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/gotower/gotower/examples/destination/controller"
)

// kinds is an API server that has Services, Pods, EndpointSlices and HTTPRoutes. It reports
// twice that it does not have HTTPRoutes, as one that has just started. It has no other kind.
type kinds struct {
	mu      sync.Mutex
	answers map[string]int // that a resource is missing
}

func (k *kinds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	group, resource := path.Split(r.URL.Path)
	if group == "/apis/" { // a look-up of the group, not of objects
		http.NotFound(w, r)
		return
	}
	kind := map[string]string{"services": "v1 Service", "pods": "v1 Pod", "endpointslices": "discovery.k8s.io/v1 EndpointSlice"}[resource]
	k.mu.Lock()
	if kind == "" && (resource != "httproutes" || k.answers[resource] < 2) {
		k.answers[resource]++
		k.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	k.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	object := `{"apiVersion":"gateway.networking.k8s.io/v1","kind":"HTTPRoute","metadata":{"name":"a","namespace":"b","resourceVersion":"1"},"spec":{}}`
	if version, name, ok := strings.Cut(kind, " "); ok {
		object = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"a","namespace":"b","resourceVersion":"1"}}`, version, name)
	}
	if r.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"1"},"items":[%s]}`, object)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		end := strings.Replace(object, `"name":"a","namespace":"b"`, `"annotations":{"k8s.io/initial-events-end":"true"}`, 1)
		fmt.Fprintf(w, `{"type":"ADDED","object":%s}{"type":"BOOKMARK","object":%s}`, object, end)
	}
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// A kind counts as missing only after several answers, because an API server that has just
// started does not have its definitions yet. The other kinds are then served.
func TestWatcherMissingKinds(t *testing.T) {
	t.Parallel()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("takes 5 s, because client-go waits between attempts; set GOTOWER_TESTS=full")
	}
	api := &kinds{answers: make(map[string]int)}
	server := httptest.NewServer(api)
	defer server.Close()
	var logged strings.Builder // written by one goroutine at a time, because slog has a lock
	w, err := New(&rest.Config{Host: server.URL, QPS: -1}, DefaultSettings(), controller.New(nil), slog.New(slog.NewTextHandler(&logged, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // ends the watches, for which server.Close waits
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- w.Run(ctx, Lease{}, func() { close(ready) }) }()
	select {
	case <-ready:
	case <-time.After(time.Minute):
		require.Fail(t, "the watcher waits for missing kinds")
	}
	require.Equal(t, []string{"b/a"}, w.stores["HTTPRoute"].ListKeys(), "which the API server had late")
	require.Equal(t, []string{"b/a"}, w.stores["Service"].ListKeys())
	api.mu.Lock()
	answers := maps.Clone(api.answers)
	api.mu.Unlock()
	for resource, n := range answers {
		if resource != "httproutes" {
			require.GreaterOrEqual(t, n, minMissing, resource)
		}
	}
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, 1, strings.Count(logged.String(), "kind=GRPCRoute"), "one warning")
	require.NotContains(t, logged.String(), "kind=HTTPRoute")
}
