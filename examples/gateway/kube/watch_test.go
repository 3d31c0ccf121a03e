package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"github.com/gotower/gotower/examples/gateway/config"
)

// refusal is the answer of an API server to the list of a resource.
type refusal func(schema.GroupResource) error

func notFound(r schema.GroupResource) error { return apierrors.NewNotFound(r, "") }

func forbidden(r schema.GroupResource) error {
	return apierrors.NewForbidden(r, "", errors.New("the ClusterRole lacks it"))
}

// watched is a Watcher that runs.
type watched struct {
	*Watcher

	client  *fake.FakeDynamicClient
	loaded  chan *config.Config
	logged  *bytes.Buffer // may be read after stop
	stop    func()
	refused atomic.Int64 // refused lists
	allow   func()       // ends the refusals
}

// watch starts a Watcher of an API server with the objects in testdata/tls.yaml, which refuses to list the
// resource, "*" for all, until the test calls allow.
func watch(t *testing.T, resource string, refuse refusal) *watched {
	t.Helper()
	lists := make(map[schema.GroupVersionResource]string)
	for kind, r := range kinds {
		lists[r] = kind + "List"
	}
	w := &watched{
		client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists),
		loaded: make(chan *config.Config, 100), logged: new(bytes.Buffer),
	}
	for _, u := range read(t, "testdata/tls.yaml") {
		u.SetAPIVersion(kinds[u.GetKind()].GroupVersion().String())
		_, err := w.client.Resource(kinds[u.GetKind()]).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var allowed atomic.Bool
	w.allow = func() { allowed.Store(true) }
	w.client.PrependReactor("list", resource, func(a kubetesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		w.refused.Add(1)
		return true, nil, refuse(a.GetResource().GroupResource())
	})
	w.Watcher = &Watcher{
		settings: settings(), log: slog.New(slog.NewTextHandler(w.logged, nil)), client: w.client,
		informers: make(map[string]*informer), changed: make(chan struct{}, 1),
	}
	for kind := range kinds {
		var err error
		w.informers[kind], err = w.informer(kind)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx, func(c *config.Config) error { w.loaded <- c; return nil }) })
	w.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(w.stop)
	return w
}

func hasRoute(c *config.Config, name config.Name) bool {
	return slices.ContainsFunc(c.TCPRoutes, func(r config.TCPRoute) bool { return r.Name == name })
}

// A cluster without the definition of TLSRoutes, or one whose ClusterRole does not let the gateway read them, is
// served. Once they can be read, they are served too.
func TestWatcherRefusedKind(t *testing.T) {
	t.Parallel()
	for remedy, refuse := range map[string]refusal{
		"install the CustomResourceDefinition of tlsroutes.gateway.networking.k8s.io in version v1": notFound,
		"apply the ClusterRole in the kubernetes.yaml of this version of the gateway":               forbidden,
	} {
		t.Run(remedy, func(t *testing.T) {
			t.Parallel()
			w := watch(t, "tlsroutes", refuse)
			first := <-w.loaded
			require.NotEmpty(t, first.Routes)
			for _, r := range first.TCPRoutes {
				require.Contains(t, string(r.Name), ".other.", "only those that isolate listeners")
			}
			w.allow()
			for c := first; !hasRoute(c, "tls.shop.wide.0.0"); {
				c = <-w.loaded
			}
			w.stop()
			require.Equal(t, 1, strings.Count(w.logged.String(), "level=WARN"), w.logged.String())
			require.Contains(t, w.logged.String(), `kind=TLSRoute remedy="`+remedy+`"`)
			require.Equal(t, 1, strings.Count(w.logged.String(), `can be read now" kind=TLSRoute`), w.logged.String())
			u, err := w.client.Resource(kinds["TLSRoute"]).Namespace("shop").Get(t.Context(), "wide", metav1.GetOptions{})
			require.NoError(t, err)
			parents, _, err := unstructured.NestedSlice(u.Object, "status", "parents")
			require.NoError(t, err)
			require.Len(t, parents, 1)
		})
	}
}

// Before its ClusterRole is bound, a gateway may read nothing. It waits, and then serves all kinds at once.
func TestWatcherWithoutRights(t *testing.T) {
	t.Parallel()
	w := watch(t, "*", forbidden)
	for w.refused.Load() < 3 { // Services, Secrets and Namespaces
		select {
		case <-w.loaded:
			require.Fail(t, "loaded without the right to read Services")
		case <-time.After(time.Millisecond):
		}
	}
	w.allow()
	require.True(t, hasRoute(<-w.loaded, "tls.shop.wide.0.0"))
	w.stop()
	require.NotContains(t, w.logged.String(), "kind=TLSRoute")
}

// A real response with the status 403 counts as a refusal.
func TestReadForbiddenKind(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/tlsroutes"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403}`)
		case r.URL.Query().Get("watch") == "":
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":"1"},"items":[]}`)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity) // as an API server without this feature
		default:
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	file := config.File{Path: filepath.Join(t.TempDir(), "kubeconfig")}
	require.NoError(t, os.WriteFile(file.Path, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test}}]
clusters: [{name: test, cluster: {server: %q}}]
`, server.URL), 0o600))
	s := settings()
	s.Kubeconfig = &file
	var logged bytes.Buffer
	w, err := New(s, slog.New(slog.NewTextHandler(&logged, nil)))
	require.NoError(t, err)
	_, err = w.Read(t.Context())
	require.NoError(t, err)
	require.Contains(t, logged.String(), `kind=TLSRoute remedy="apply the ClusterRole`)
}
