package injector

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// labelsOf returns the labels of the pod template of a workload after the filter.
func labelsOf(t *testing.T, out []byte) map[string]any {
	t.Helper()
	var document, labels map[string]any
	require.NoError(t, decode(out, &document))
	require.NoError(t, each(document, "", 0, func(_ Workload, p map[string]any) error {
		decoded, err := newPod(p)
		labels = decoded.labels
		return err
	}))
	return labels
}

// The pods of a workload have the labels by which linkerd's viz extension selects them, and lose them
// with the proxy.
func TestWorkloadLabels(t *testing.T) {
	c := Default()
	for kind, label := range map[string]string{
		"Deployment": "linkerd.io/proxy-deployment", "StatefulSet": "linkerd.io/proxy-statefulset", "DaemonSet": "linkerd.io/proxy-daemonset",
		"ReplicaSet": "linkerd.io/proxy-replicaset", "Job": "linkerd.io/proxy-job", "Pod": "",
	} {
		version := "apps/v1"
		if kind == "Pod" {
			version = "v1"
		}
		in := `{"apiVersion":"` + version + `","kind":"` + kind + `","metadata":{"name":"web","namespace":"shop"},"spec":{"template":{"spec":{"containers":[{"name":"a"}]}},"containers":[{"name":"a"}]}}`
		out, _, err := c.Filter([]byte(in))
		require.NoError(t, err)
		labels := labelsOf(t, out)
		require.Equal(t, "shop", labels["linkerd.io/workload-ns"], kind)
		require.Equal(t, "linkerd", labels["linkerd.io/control-plane-ns"], kind)
		if label != "" {
			require.Equal(t, "web", labels[label], kind)
		}
		out, _, err = FilterUninject(out)
		require.NoError(t, err)
		require.Empty(t, labelsOf(t, out), kind)
	}
}

// The webhook gets pods, which refer to their workload.
func TestOwnerOf(t *testing.T) {
	for owners, want := range map[string]Workload{
		``: {Namespace: "shop"},
		`{"kind":"ReplicaSet","name":"web-5d","controller":true}`:                          {"Deployment", "shop", "web"},
		`{"kind":"ReplicaSet","name":"alone","controller":true}`:                           {"ReplicaSet", "shop", "alone"},
		`{"kind":"StatefulSet","name":"db"}`:                                               {"StatefulSet", "shop", "db"},
		`{"kind":"Node","name":"n"},{"kind":"DaemonSet","name":"agent","controller":true}`: {"DaemonSet", "shop", "agent"},
	} {
		raw := `{"metadata":{"name":"p","labels":{"pod-template-hash":"5d"},"ownerReferences":[` + owners + `]},"spec":{"containers":[{"name":"a"}]}}`
		var p map[string]any
		require.NoError(t, decode([]byte(raw), &p))
		metadata, _ := p["metadata"].(map[string]any)
		require.Equal(t, want, ownerOf(metadata, "shop"), owners)
		patch, _, err := Default().Patch([]byte(raw), "shop", nil)
		require.NoError(t, err)
		require.Contains(t, string(patch), `"linkerd.io/workload-ns":"shop"`)
		require.Equal(t, isOwner(want.Kind), strings.Contains(string(patch), `"linkerd.io/proxy-`+strings.ToLower(want.Kind)+`":"`+want.Name+`"`))
	}
}

// With FilterAnnotate, a webhook injects the pods later.
// A repeated key is a warning, as for kubectl.
func TestFilterRepeatedKey(t *testing.T) {
	const pod = "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec:\n  hostname: a\n  hostname: b\n  containers: [{name: web}]\n"
	out, reports, err := config(t).Filter([]byte(pod))
	require.NoError(t, err)
	require.Contains(t, string(out), "hostname: b\n")
	require.Len(t, reports, 1)
	require.Empty(t, reports[0].Skipped)
	require.Len(t, reports[0].Warnings, 1)
	require.Contains(t, reports[0].Warnings[0], "the last value of a repeated key applies: ")
	require.Contains(t, reports[0].Warnings[0], `"hostname" already set`)
	_, _, err = config(t).Filter([]byte("kind: Pod\n\tx"))
	require.Error(t, err)
}

func TestFilterAnnotate(t *testing.T) {
	const deployment = "# kept\nkind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {template: {metadata: {annotations: {A}}, spec: {containers: [{name: a}]}}}\n"
	for before, after := range map[string]string{"": "enabled", "linkerd.io/inject: disabled": "enabled", "linkerd.io/inject: ingress": "ingress"} {
		in := strings.Replace(deployment, "A}", before+"}", 1)
		out, reports, err := FilterAnnotate([]byte(in))
		require.NoError(t, err)
		require.Len(t, reports, 1)
		require.Contains(t, string(out), "linkerd.io/inject: "+after)
		require.NotContains(t, string(out), ProxyName)
		require.Equal(t, after == "ingress", string(out) == in)
		again, _, err := FilterAnnotate(out)
		require.NoError(t, err)
		require.Equal(t, out, again)
	}
	const host = "kind: Pod\napiVersion: v1\nspec: {hostNetwork: true, containers: [{name: a}]}\n"
	out, _, err := FilterAnnotate([]byte(host))
	require.NoError(t, err)
	require.Equal(t, host, string(out))
}

// A proxy uses one processor, or as many as its resources have.
func TestProcessors(t *testing.T) {
	for _, test := range []struct {
		annotations      map[string]string
		cores, most, cut string
	}{
		{nil, "1", "", ""},
		{map[string]string{"config.linkerd.io/proxy-cpu-request": "100m"}, "1", "", ""},
		{map[string]string{"config.linkerd.io/proxy-cpu-request": "1500m", "config.linkerd.io/proxy-cpu-limit": "3"}, "2", "3", ""},
		{map[string]string{"config.linkerd.io/proxy-cpu-limit": "200m"}, "1", "1", ""},
		{map[string]string{"config.linkerd.io/proxy-cpu-ratio-limit": "0.5"}, "1", "", "0.5"},
	} {
		p, _, err := inject(t, Default(), test.annotations, nil)
		require.NoError(t, err)
		env := variables(t, p)
		require.Equal(t, []string{test.cores, test.most, test.cut},
			[]string{env["LINKERD2_PROXY_CORES"], env["LINKERD2_PROXY_CORES_MAX"], env["LINKERD2_PROXY_CORES_MAX_RATIO"]}, test)
	}
}

// In a cluster with linkerd's control plane, the policy controller has an address of its own, and viz
// may tap.
func TestForeignControlPlane(t *testing.T) {
	c := config(t)
	c.PolicyAddr = "linkerd-policy.linkerd.svc.cluster.local.:8090"
	c.TapAccount = "tap.linkerd-viz"
	p, _, err := inject(t, c, map[string]string{
		"config.linkerd.io/proxy-additional-env":                          `[{"name":"LINKERD2_PROXY_LOG","value":"debug"},{"name":"A","value":"b"}]`,
		"config.linkerd.io/proxy-metrics-hostname-labels":                 "true",
		"config.linkerd.io/proxy-inbound-discovery-cache-unused-timeout":  "60s",
		"config.linkerd.io/proxy-outbound-discovery-cache-unused-timeout": "6s",
		"config.linkerd.io/proxy-disable-inbound-protocol-detect-timeout": "true",
	}, nil)
	require.NoError(t, err)
	env := variables(t, p)
	for name, want := range map[string]string{
		"DESTINATION_SVC_ADDR": "linkerd-dst-headless.linkerd.svc.cluster.local.:8086", "POLICY_SVC_ADDR": c.PolicyAddr,
		"POLICY_SVC_NAME":                  "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local",
		"TAP_SVC_NAME":                     "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local",
		"OUTBOUND_METRICS_HOSTNAME_LABELS": "true",
		"LOG":                              "debug", "INBOUND_DISCOVERY_IDLE_TIMEOUT": "60s", "OUTBOUND_DISCOVERY_IDLE_TIMEOUT": "6s", "INBOUND_DETECT_TIMEOUT": "365d",
	} {
		require.Equal(t, want, env["LINKERD2_PROXY_"+name], name)
	}
	require.Equal(t, "b", env["A"])
	for annotation, value := range map[string]string{"proxy-cpu-ratio-limit": "2", "proxy-additional-env": `[{"value":"x"}]`} {
		_, _, err := inject(t, c, map[string]string{"config.linkerd.io/" + annotation: value}, nil)
		require.ErrorContains(t, err, annotation)
	}
	p, result, err := inject(t, c, map[string]string{
		"config.linkerd.io/enable-gateway": "true", "config.linkerd.io/proxy-log-http-headers": "off", "config.linkerd.io/enable-debug-sidecar": "true",
	}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"annotation config.linkerd.io/enable-debug-sidecar is ignored, because there is no image for debugging"}, result.Warnings)
	require.Equal(t, "svc.cluster.local.", variables(t, p)["LINKERD2_PROXY_INBOUND_GATEWAY_SUFFIXES"])
}
