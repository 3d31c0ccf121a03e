package injector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

type object = map[string]any

// kinds has the API version and the spec around the pod template of each kind of workload.
var kinds = []struct {
	kind, version string
	spec          func(template object) object
}{
	{"Pod", "v1", nil},
	{"Deployment", "apps/v1", selected},
	{"ReplicaSet", "apps/v1", selected},
	{"StatefulSet", "apps/v1", func(t object) object {
		spec := selected(t)
		spec["serviceName"] = "web"
		return spec
	}},
	{"DaemonSet", "apps/v1", selected},
	{"ReplicationController", "v1", func(t object) object { return object{"selector": object{"app": "web"}, "template": t} }},
	{"Job", "batch/v1", func(t object) object { return object{"template": t} }},
	{"CronJob", "batch/v1", func(t object) object {
		return object{"schedule": "5 4 * * *", "jobTemplate": object{"spec": object{"template": t}}}
	}},
}

func selected(template object) object {
	return object{"selector": object{"matchLabels": object{"app": "web"}}, "template": template}
}

// oddities change the pod of a workload, or its text.
var oddities = []struct {
	name    string
	skipped bool // the pod is not injected
	invalid bool // the API server rejects it
	pod     func(pod, spec object)
	text    func(text string) string
}{
	{name: "plain"},
	{name: "host-network", skipped: true, pod: func(_, spec object) { spec["hostNetwork"] = true }},
	{name: "no-containers", skipped: true, invalid: true, pod: func(_, spec object) { delete(spec, "containers") }},
	{name: "empty-containers", skipped: true, invalid: true, pod: func(_, spec object) { spec["containers"] = []any{} }},
	{name: "init-containers", pod: func(_, spec object) {
		spec["initContainers"] = []any{object{"name": "first", "image": "busybox"}, object{"name": "second", "image": "busybox", "restartPolicy": "Always"}}
	}},
	{name: "same-volume", skipped: true, pod: func(_, spec object) {
		spec["volumes"] = []any{object{"name": "linkerd-identity-token", "emptyDir": object{}}}
	}},
	{name: "volumes", pod: func(_, spec object) {
		spec["volumes"] = []any{object{"name": "data", "emptyDir": object{"sizeLimit": "1Gi"}}}
		first(spec)["volumeMounts"] = []any{object{"name": "data", "mountPath": "/data"}}
	}},
	{name: "same-init", skipped: true, pod: func(_, spec object) {
		spec["initContainers"] = []any{object{"name": "linkerd-init", "image": "busybox"}}
	}},
	{name: "probes", pod: func(_, spec object) {
		first(spec)["ports"] = []any{object{"name": "http", "containerPort": 8080}}
		first(spec)["livenessProbe"] = object{"httpGet": object{"path": "/", "port": "http"}}
		first(spec)["readinessProbe"] = object{"tcpSocket": object{"port": 8080}}
		first(spec)["startupProbe"] = object{"exec": object{"command": []any{"true"}}}
	}},
	{name: "comments", text: func(s string) string { return "# a comment\n---\n# another\n" + s + "# the end\n---\n" }},
	{name: "commented-separator", text: func(s string) string {
		return "--- # first\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n--- # second\n" + s + "...\n"
	}},
	{name: "carriage-returns", text: func(s string) string { return strings.ReplaceAll("---\n"+s+"---\n"+s, "\n", "\r\n") }},
	{name: "anchors", text: func(s string) string {
		return strings.Replace(s, "metadata:\n", "metadata:\n  annotations: {a: &x value, b: *x}\n", 1)
	}},
	{name: "empty-documents", text: func(s string) string { return "---\n---\n\n---\nnull\n---\n" + s + "---\n\n" }},
	{name: "quoted-numbers", pod: func(pod, spec object) {
		pod["metadata"] = object{"labels": object{"app": "web"}, "annotations": object{"n": "0123", "yes": "on", "f": "1e3", "date": "2001-01-01"}}
		first(spec)["env"] = []any{object{"name": "PORT", "value": "8080"}, object{"name": "OCTAL", "value": "0o17"}, object{"name": "NULL", "value": "null"}}
	}},
	{name: "unknown-fields", pod: func(_, spec object) {
		spec["inventedByTomorrow"] = object{"deep": []any{1, "2", 3.5, nil, true}}
		first(spec)["alsoUnknown"] = "x"
	}},
	{name: "windows", skipped: true, pod: func(_, spec object) { spec["nodeSelector"] = object{"kubernetes.io/os": "windows"} }},
	{name: "windows-os", skipped: true, pod: func(_, spec object) { spec["os"] = object{"name": "windows"} }},
	{name: "large", pod: func(_, spec object) {
		containers, _ := spec["containers"].([]any)
		for i := range 20 {
			env := []any{}
			for j := range 10 {
				env = append(env, object{"name": fmt.Sprintf("E%d", j), "value": strings.Repeat("x", 100)})
			}
			containers = append(containers, object{"name": fmt.Sprintf("c%d", i), "image": "busybox", "env": env, "ports": []any{object{"containerPort": 9000 + i}}})
		}
		spec["containers"] = containers
	}},
	{name: "empty-maps", pod: func(pod, spec object) {
		pod["metadata"] = object{"labels": object{"app": "web"}, "annotations": object{}}
		spec["volumes"], spec["initContainers"] = []any{}, nil
	}},
	{name: "all-annotations", pod: annotated(
		"config.linkerd.io/proxy-image", "example/proxy:v1", "config.linkerd.io/init-image", "example/init", "config.linkerd.io/proxy-version", "v2",
		"config.linkerd.io/image-pull-policy", "Always", "config.linkerd.io/inbound-port", "5143", "config.linkerd.io/outbound-port", "5140",
		"config.linkerd.io/control-port", "5190", "config.linkerd.io/admin-port", "5191", "config.linkerd.io/proxy-uid", "3000",
		"config.linkerd.io/proxy-gid", "3001", "config.linkerd.io/skip-inbound-ports", "22,8000-8010", "config.linkerd.io/skip-outbound-ports", "5432",
		"config.linkerd.io/skip-subnets", "10.1.0.0/16", "config.linkerd.io/proxy-log-format", "json",
		"config.linkerd.io/proxy-log-level", "debug", "config.linkerd.io/access-log", "apache", "config.linkerd.io/default-inbound-policy", "deny",
		"config.linkerd.io/proxy-cpu-request", "100m", "config.linkerd.io/proxy-cpu-limit", "1", "config.linkerd.io/proxy-memory-request", "20Mi",
		"config.linkerd.io/proxy-memory-limit", "250Mi", "config.linkerd.io/proxy-ephemeral-storage-request", "1Mi",
		"config.linkerd.io/proxy-ephemeral-storage-limit", "10Mi", "config.linkerd.io/enable-external-profiles", "true",
		"config.linkerd.io/proxy-inbound-connect-timeout", "200ms", "config.linkerd.io/proxy-outbound-connect-timeout", "2s",
		"config.linkerd.io/shutdown-grace-period", "30s", "config.alpha.linkerd.io/proxy-wait-before-exit-seconds", "5",
		"config.linkerd.io/proxy-require-identity-inbound-ports", "8080", "config.linkerd.io/disable-tap", "true",
		"config.linkerd.io/proxy-admin-shutdown", "enabled", "config.linkerd.io/pod-inbound-ports", "80,81")},
	{name: "ordinary-container", pod: annotated("config.beta.linkerd.io/proxy-enable-native-sidecar", "false")},
	{name: "ordinary-no-await", pod: annotated("config.linkerd.io/proxy-enable-native-sidecar", "false", "config.linkerd.io/proxy-await", "disabled")},
	{name: "disabled", skipped: true, pod: annotated("linkerd.io/inject", "disabled")},
	{name: "ingress", pod: annotated("linkerd.io/inject", "ingress")},
	{name: "named-opaque-port", pod: func(pod, spec object) {
		first(spec)["ports"] = []any{object{"name": "db", "containerPort": 5433}, object{"name": "dns", "containerPort": 53, "protocol": "UDP"}}
		annotated("config.linkerd.io/opaque-ports", "db,3306")(pod, spec)
	}},
	{name: "unknown-annotation", pod: annotated("config.linkerd.io/from-tomorrow", "x")},
	{name: "security", pod: func(_, spec object) {
		spec["securityContext"] = object{"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 2000}
		spec["automountServiceAccountToken"] = false
	}},
	{name: "large-numbers", pod: func(_, spec object) {
		spec["activeDeadlineSeconds"] = 2147483647
		spec["x"] = json.Number("9007199254740993")
	}},
	{name: "text", pod: func(_, spec object) {
		first(spec)["args"] = []any{"line\n---\nkind: Pod\n", "<&>\u2028 héllo", "  leading", "tab\t", "#no comment", "trailing \\"}
	}},
	{name: "json", text: toJSON},
	{name: "json-stream", text: func(s string) string {
		return toJSON(s) + toJSON("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n") + toJSON(s)
	}},
	{name: "list", text: func(s string) string {
		return "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n" + item(s) + item(s)
	}},
	{name: "other-kinds", text: func(s string) string {
		return "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b} # kept\ndata:\n  k: |\n    text\n    ---\n    more\n---\n" + s +
			"---\nkind: Service\napiVersion: v1\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
	}},
}

func first(spec object) object {
	containers, _ := spec["containers"].([]any)
	c, _ := containers[0].(object)
	return c
}

func annotated(pairs ...string) func(pod, spec object) {
	return func(pod, _ object) {
		annotations := object{}
		for i := 0; i < len(pairs); i += 2 {
			annotations[pairs[i]] = pairs[i+1]
		}
		pod["metadata"] = object{"labels": object{"app": "web"}, "annotations": annotations}
	}
}

func toJSON(text string) string {
	out, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	return string(out) + "\n"
}

func item(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return "- " + strings.Join(lines, "\n  ") + "\n"
}

// manifest is a stream of documents for the tests.
type manifest struct {
	name             string
	text             string
	skipped, invalid bool
}

// manifests returns each kind of workload with each oddity.
func manifests(t *testing.T) (all []manifest) {
	t.Helper()
	for _, k := range kinds {
		for _, odd := range oddities {
			// An admission plugin that the API server of the tests does not have sets the account.
			spec := object{"containers": []any{object{"name": "web", "image": "nginx"}}, "serviceAccountName": "default"}
			if k.kind == "Job" || k.kind == "CronJob" {
				spec["restartPolicy"] = "Never"
			}
			pod := object{"metadata": object{"labels": object{"app": "web"}}, "spec": spec}
			if odd.pod != nil {
				odd.pod(pod, spec)
			}
			workload := object{"apiVersion": k.version, "kind": k.kind}
			if k.spec == nil {
				workload["spec"] = pod["spec"]
				metadata, _ := pod["metadata"].(object)
				metadata["name"] = "web"
				workload["metadata"] = metadata
			} else {
				workload["metadata"] = object{"name": "web"}
				workload["spec"] = k.spec(pod)
			}
			if odd.name == "large-numbers" && k.kind != "Pod" {
				delete(spec, "activeDeadlineSeconds") // only of Pods and Jobs
			}
			out, err := yaml.Marshal(workload)
			require.NoError(t, err)
			text := string(out)
			if odd.text != nil {
				if odd.name == "anchors" && k.kind == "Pod" {
					text = strings.Replace(text, "metadata:\n", "metadata:\n  x: &y z\n  w: *y\n", 1)
				} else {
					text = odd.text(text)
				}
			}
			all = append(all, manifest{k.kind + "/" + odd.name, text, odd.skipped, odd.invalid})
		}
	}
	return all
}

// objects returns the objects of a stream.
func objects(t *testing.T, text []byte) (all []object) {
	t.Helper()
	for _, document := range split(text) {
		content := strings.TrimPrefix(document, separator)
		values, ok := parseJSON(content)
		if !ok {
			j, err := yaml.YAMLToJSONStrict([]byte(content))
			require.NoError(t, err)
			var v any
			require.NoError(t, decode(j, &v))
			values = []any{v}
		}
		for _, v := range values {
			if m, ok := v.(object); ok {
				all = append(all, m)
			}
		}
	}
	return all
}

// prune removes the empty fields of pods, which have no meaning.
func prune(t *testing.T, all []object) []object {
	t.Helper()
	for _, o := range all {
		require.NoError(t, each(o, "", 0, func(_ Workload, pod object) error {
			metadata, _ := pod["metadata"].(object)
			spec, _ := pod["spec"].(object)
			for _, name := range []string{"annotations", "labels"} {
				if m, ok := metadata[name].(object); ok && len(m) == 0 {
					delete(metadata, name)
				}
			}
			for _, name := range []string{"containers", "initContainers", "volumes"} {
				if l, ok := spec[name].([]any); ok && len(l) == 0 || spec[name] == nil {
					delete(spec, name)
				}
			}
			return nil
		}))
	}
	return all
}

// A second injection changes nothing, and the removal restores the input. The short form has
// one of five manifests.
func TestFilterManifests(t *testing.T) {
	c := config(t)
	all := manifests(t)
	require.Greater(t, len(all), 200)
	for i, m := range all {
		if i%5 != 0 && os.Getenv("GOTOWER_TESTS") != "full" {
			continue
		}
		once, reports, err := c.Filter([]byte(m.text))
		require.NoError(t, err, m.name)
		require.NotEmpty(t, reports, m.name)
		for _, r := range reports {
			require.Equal(t, m.skipped, r.Skipped != "", "%s: %s", m.name, r.Skipped)
		}
		if m.skipped {
			require.Equal(t, m.text, string(once), m.name)
		} else {
			require.Contains(t, string(once), "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", m.name)
		}
		twice, _, err := c.Filter(once)
		require.NoError(t, err, m.name)
		require.Equal(t, string(once), string(twice), m.name)
		restored, _, err := FilterUninject(once)
		require.NoError(t, err, m.name)
		require.Equal(t, prune(t, objects(t, []byte(m.text))), prune(t, objects(t, restored)), m.name)
		require.NotContains(t, string(restored), "linkerd-proxy", m.name)
		again, _, err := FilterUninject(restored)
		require.NoError(t, err, m.name)
		require.True(t, bytes.Equal(restored, again), m.name)
	}
}
