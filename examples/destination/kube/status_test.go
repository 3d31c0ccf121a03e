package kube

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// Only the leader collects routes, so that the others do not collect them without end.
func TestStatusWriterCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := documents(t, `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: b}, spec: {
 parentRefs: [{group: core, kind: Service, name: a}]}}`)
		c := fill(t, objects...)
		client := fake.NewSimpleDynamicClient(runtime.NewScheme(), objects[0].DeepCopy())
		w := newStatusWriter(c, client)
		route := c.stores["HTTPRoute"].List()[0]
		w.changed(route)
		require.Empty(t, w.dirty)
		for range 2 {
			client.ClearActions()
			ctx, cancel := context.WithCancel(t.Context())
			go w.run(ctx)
			time.Sleep(time.Second)
			require.Len(t, client.Actions(), 1, "of all routes at the start")
			w.changed(route)
			time.Sleep(time.Second)
			require.Greater(t, len(client.Actions()), 1, "of a changed route, which changed may add twice")
			cancel()
			synctest.Wait()
			w.changed(route)
			require.Empty(t, w.dirty)
		}
	})
}

// A candidate that loses the Lease leads again only after its last term has ended. One that never
// leads ends with its context.
func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kubefake.NewClientset()
		var unavailable atomic.Bool
		client.PrependReactor("update", "leases", func(kubetesting.Action) (bool, runtime.Object, error) {
			return unavailable.Load(), nil, errors.New("unavailable")
		})
		var terms, leaders atomic.Int64
		lead := func(ctx context.Context) {
			terms.Add(1)
			assert.Equal(t, int64(1), leaders.Add(1))
			<-ctx.Done()
			time.Sleep(time.Hour)
			leaders.Add(-1)
		}
		start := func(identity string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- Lease{Namespace: "a", Name: "b", Identity: identity}.run(ctx, client, lead) }()
			time.Sleep(time.Minute)
			return func() {
				cancel()
				require.NoError(t, <-done)
			}
		}
		stop := start("first")
		start("second")()
		require.Equal(t, int64(1), terms.Load())

		unavailable.Store(true)
		time.Sleep(time.Minute)
		unavailable.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, int64(1), terms.Load(), "the first term has not ended")
		time.Sleep(time.Hour)
		require.Equal(t, int64(2), terms.Load())
		stop()
		time.Sleep(2 * time.Hour) // until the last term has ended, too
	})
}
