package injector

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/gotower/gotower/internal/kubetest"
)

// The API server accepts each injected manifest that it accepts without a proxy.
func TestRealAPIServerManifests(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("GOTOWER_TESTS=full runs it")
	}
	cfg := kubetest.New(t).Config(kubetest.Admin)
	client, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	server, err := dynamic.NewForConfigAndClient(cfg, client)
	require.NoError(t, err)
	resources := map[string]schema.GroupVersionResource{
		"Pod": {Version: "v1", Resource: "pods"}, "ReplicationController": {Version: "v1", Resource: "replicationcontrollers"},
		"Deployment": {Group: "apps", Version: "v1", Resource: "deployments"}, "ReplicaSet": {Group: "apps", Version: "v1", Resource: "replicasets"},
		"StatefulSet": {Group: "apps", Version: "v1", Resource: "statefulsets"}, "DaemonSet": {Group: "apps", Version: "v1", Resource: "daemonsets"},
		"Job": {Group: "batch", Version: "v1", Resource: "jobs"}, "CronJob": {Group: "batch", Version: "v1", Resource: "cronjobs"},
		"ConfigMap": {Version: "v1", Resource: "configmaps"}, "Service": {Version: "v1", Resource: "services"},
	}
	// create creates all objects of a stream in a dry run.
	create := func(text []byte) (n int, err error) {
		var all []object
		for _, o := range objects(t, text) {
			if items, ok := o["items"].([]any); ok {
				for _, i := range items {
					m, ok := i.(object)
					require.True(t, ok)
					all = append(all, m)
				}
			} else {
				all = append(all, o)
			}
		}
		for _, o := range all {
			var plain object
			text, failed := json.Marshal(o)
			require.NoError(t, failed)
			require.NoError(t, utiljson.Unmarshal(text, &plain)) // numbers are int64 or float64
			u := &unstructured.Unstructured{Object: plain}
			resource, ok := resources[u.GetKind()]
			require.True(t, ok, u.GetKind())
			_, failed = server.Resource(resource).Namespace("default").
				Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			err = errors.Join(err, failed)
			n++
		}
		return n, err
	}
	c := config(t)
	manifests, created := manifests(t), 0
	for _, m := range manifests {
		once, _, err := c.Filter([]byte(m.text))
		require.NoError(t, err, m.name)
		restored, _, err := FilterUninject(once)
		require.NoError(t, err, m.name)
		for _, text := range [][]byte{[]byte(m.text), once, restored} {
			n, err := create(text)
			created += n
			if m.invalid {
				require.Error(t, err, m.name)
			} else {
				require.NoError(t, err, "%s\n%s", m.name, text)
			}
		}
	}
	t.Logf("%d manifests, %d objects", len(manifests), created)
}
