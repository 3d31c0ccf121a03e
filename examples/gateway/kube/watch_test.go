package kube

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

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

// A cluster without TLSRoutes is served. Once it has their definition, they are served too.
func TestWatcherMissingKinds(t *testing.T) {
	lists := make(map[schema.GroupVersionResource]string)
	for kind, resource := range kinds {
		lists[resource] = kind + "List"
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	for _, u := range read(t, "testdata/tls.yaml") {
		u.SetAPIVersion(kinds[u.GetKind()].GroupVersion().String())
		_, err := client.Resource(kinds[u.GetKind()]).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var defined atomic.Bool
	client.PrependReactor("list", "tlsroutes", func(a kubetesting.Action) (bool, runtime.Object, error) {
		return !defined.Load(), nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "")
	})
	var logged bytes.Buffer // written by one goroutine at a time, because slog has a lock
	w := &Watcher{
		settings: settings(), log: slog.New(slog.NewTextHandler(&logged, nil)), client: client,
		informers: make(map[string]*informer), changed: make(chan struct{}, 1),
	}
	for kind := range kinds {
		var err error
		w.informers[kind], err = w.informer(kind)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loaded := make(chan *config.Config, 100)
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx, func(c *config.Config) error { loaded <- c; return nil }) })
	first := <-loaded
	require.NotEmpty(t, first.Routes)
	for _, r := range first.TCPRoutes {
		require.Contains(t, string(r.Name), ".other.", "only those that isolate listeners")
	}
	defined.Store(true)
	for c := range loaded {
		if slices.ContainsFunc(c.TCPRoutes, func(r config.TCPRoute) bool { return r.Name == "tls.shop.wide.0.0" }) {
			break
		}
	}
	cancel()
	running.Wait()
	require.Equal(t, 1, strings.Count(logged.String(), "kind=TLSRoute"), logged.String())
	u, err := client.Resource(kinds["TLSRoute"]).Namespace("shop").Get(t.Context(), "wide", metav1.GetOptions{})
	require.NoError(t, err)
	parents, _, err := unstructured.NestedSlice(u.Object, "status", "parents")
	require.NoError(t, err)
	require.Len(t, parents, 1)
}
