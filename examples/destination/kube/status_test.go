package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
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
