package injector

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/identity/ca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(t *testing.T) Config {
	t.Helper()
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	c := Default()
	c.TrustAnchors = string(authority.TrustAnchors())
	require.NoError(t, c.Validate())
	return c
}

// inject injects a pod with annotations, and returns its proxy.
func inject(t *testing.T, c Config, annotations map[string]string, namespace map[string]string) (object, Result, error) {
	t.Helper()
	p := object{"metadata": object{}, "spec": object{"containers": []any{
		object{"name": "web", "ports": []any{object{"name": "db", "containerPort": 5433}, object{"containerPort": 53, "protocol": "UDP"}}},
	}}}
	metadata, _ := p["metadata"].(object)
	require.NoError(t, convert(annotations, new(any)))
	all := object{}
	for key, value := range annotations {
		all[key] = value
	}
	metadata["annotations"] = all
	result, err := c.Inject(p, Workload{"Deployment", "shop", "web"}, namespace)
	return p, result, err
}

// variables returns the environment of the proxy of a pod.
func variables(t *testing.T, p object) map[string]string {
	t.Helper()
	pod, err := newPod(p)
	require.NoError(t, err)
	all := map[string]string{}
	for _, c := range append(pod.inits, pod.containers...) {
		if name(c) != ProxyName {
			continue
		}
		var decoded struct {
			Env []struct{ Name, Value string } `json:"env"`
		}
		require.NoError(t, convert(c, &decoded))
		for _, e := range decoded.Env {
			all[e.Name] = e.Value
		}
	}
	return all
}

func TestInjectInvalidAnnotation(t *testing.T) {
	c := config(t)
	for annotation, want := range map[string]string{
		"linkerd.io/inject: yes":                                      `annotation linkerd.io/inject: "yes" must be enabled, disabled or ingress`,
		"config.linkerd.io/proxy-cpu-limit: much":                     "must be a quantity",
		"config.linkerd.io/inbound-port: 0":                           "must be a number from 1 to 65535",
		"config.linkerd.io/inbound-port: 4140":                        "the ports of the proxy must be different: [4140 4140 4190 4191]",
		"config.linkerd.io/proxy-uid: 0":                              "must be a number from 1",
		"config.linkerd.io/image-pull-policy: Sometimes":              "must be Always or IfNotPresent or Never",
		"config.linkerd.io/default-inbound-policy: denny":             "INBOUND_DEFAULT_POLICY",
		"config.linkerd.io/proxy-log-level: loud=loud":                "LINKERD2_PROXY_LOG",
		"config.linkerd.io/skip-inbound-ports: 80-70":                 "80-70",
		"config.linkerd.io/skip-outbound-ports: http":                 "http",
		"config.linkerd.io/skip-subnets: 10.0.0.0":                    "must be a CIDR",
		"config.linkerd.io/opaque-ports: nothing":                     "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
		"config.linkerd.io/proxy-outbound-connect-timeout: soon":      "OUTBOUND_CONNECT_TIMEOUT",
		"config.linkerd.io/close-wait-timeout: 60":                    "must be a duration",
		"config.linkerd.io/close-wait-timeout: 500ms":                 "must be a duration in whole seconds",
		"config.linkerd.io/access-log: xml":                           "must be apache or json",
		"config.linkerd.io/enable-external-profiles: maybe":           "must be true or false",
		"config.beta.linkerd.io/proxy-enable-native-sidecar: enabled": "must be true or false",
	} {
		key, value, _ := strings.Cut(annotation, ": ")
		p, _, err := inject(t, c, map[string]string{key: value}, nil)
		require.ErrorContains(t, err, want, annotation)
		require.Empty(t, variables(t, p), "the pod is unchanged")
		_, _, err = inject(t, c, nil, map[string]string{key: value})
		require.ErrorContains(t, err, want, "of a namespace: %s", annotation)
	}
	_, _, err := c.Filter([]byte("kind: Pod\napiVersion: v1\nmetadata: {name: a, annotations: {x: 1}}\nspec: {containers: [{name: b}]}"))
	require.ErrorContains(t, err, "document 1: pod a: annotation x: 1 must be a string")
	_, _, err = c.Filter([]byte("text"))
	require.ErrorContains(t, err, "must be an object")
}

// Annotations of a pod override those of its namespace, and unknown ones are a warning.
func TestInjectNamespaceAnnotations(t *testing.T) {
	p, result, err := inject(t, config(t), map[string]string{
		"config.linkerd.io/proxy-log-level": "info",
	}, map[string]string{
		"config.linkerd.io/proxy-log-level": "debug", "config.linkerd.io/opaque-ports": "db,3306", "linkerd.io/inject": "ingress",
		"config.linkerd.io/from-tomorrow": "1", "other": "2",
	})
	require.NoError(t, err)
	require.Equal(t, []string{"annotation config.linkerd.io/from-tomorrow is ignored, because it is unknown"}, result.Warnings)
	env := variables(t, p)
	require.Equal(t, "info", env["LINKERD2_PROXY_LOG"])
	require.Equal(t, "5433,3306", env["LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"])
	require.Equal(t, "5433", env["LINKERD2_PROXY_INBOUND_PORTS"])
	require.Equal(t, "true", env["LINKERD2_PROXY_INGRESS_MODE"])
	pod, err := newPod(p)
	require.NoError(t, err)
	require.Equal(t, "db,3306", pod.annotations["config.linkerd.io/opaque-ports"])
	require.NotContains(t, pod.annotations, "other")
}

// A version replaces the tag and the digest of an image.
func TestInjectVersion(t *testing.T) {
	for image, want := range map[string]string{
		"proxy": "proxy:v2", "host:5000/proxy": "host:5000/proxy:v2", "host:5000/proxy:v1": "host:5000/proxy:v2",
		"proxy@sha256:0123": "proxy:v2", "host:5000/proxy:v1@sha256:0123": "host:5000/proxy:v2",
	} {
		require.NoError(t, tag(&image)("v2"))
		require.Equal(t, want, image)
	}
}

// The proxy of the controller connects to it on localhost, and has no copy of the trust
// anchors.
func TestInjectController(t *testing.T) {
	c := config(t)
	c.Controller = true
	p, _, err := inject(t, c, nil, nil)
	require.NoError(t, err)
	env := variables(t, p)
	require.Equal(t, "localhost.:8086", env["LINKERD2_PROXY_DESTINATION_SVC_ADDR"])
	require.Equal(t, "localhost.:8086", env["LINKERD2_PROXY_POLICY_SVC_ADDR"])
	require.NotContains(t, env, "LINKERD2_PROXY_DESTINATION_SVC_NAME")
	require.NotContains(t, env, "LINKERD2_PROXY_POLICY_SVC_NAME")
	require.Equal(t, "linkerd-identity-headless.linkerd.svc.cluster.local.:8080", env["LINKERD2_PROXY_IDENTITY_SVC_ADDR"])
	require.Empty(t, env["LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"])
	require.Equal(t, "tap.linkerd.serviceaccount.identity.linkerd.cluster.local", env["LINKERD2_PROXY_TAP_SVC_NAME"])
}

// Without trust anchors, the proxy has no identity.
func TestInjectWithoutIdentity(t *testing.T) {
	p, _, err := inject(t, Default(), nil, nil)
	require.NoError(t, err)
	for name := range variables(t, p) {
		require.NotContains(t, name, "IDENTITY_DIR")
	}
	pod, err := newPod(p)
	require.NoError(t, err)
	require.Len(t, pod.volumes, 1)
}

// The positions of the containers.
func TestInjectOrder(t *testing.T) {
	names := func(all []any) (s []string) {
		for _, v := range all {
			s = append(s, name(v))
		}
		return s
	}
	for _, native := range []bool{true, false} {
		c := config(t)
		c.Native = native
		p := object{"spec": object{"containers": []any{object{"name": "web"}}, "initContainers": []any{object{"name": "first"}}}}
		_, err := c.Inject(p, Workload{}, nil)
		require.NoError(t, err)
		pod, err := newPod(p)
		require.NoError(t, err)
		if native {
			require.Equal(t, []string{"linkerd-init", "linkerd-proxy", "first"}, names(pod.inits))
			require.Equal(t, []string{"web"}, names(pod.containers))
		} else {
			require.Equal(t, []string{"first", "linkerd-init"}, names(pod.inits))
			require.Equal(t, []string{"linkerd-proxy", "web"}, names(pod.containers))
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte("kind: Pod\napiVersion: v1\nspec: {containers: [{name: a}]}\n"))
	f.Add([]byte("{\"kind\": \"List\", \"items\": [{\"kind\": \"Job\", \"spec\": {\"template\": {\"spec\": {}}}}]}"))
	f.Add([]byte("--- # c\r\nkind: Deployment\nspec: {template: {metadata: {annotations: 1}}}"))
	c := Default()
	f.Fuzz(func(t *testing.T, in []byte) {
		once, _, err := c.Filter(in)
		if err != nil {
			return
		}
		twice, _, err := c.Filter(once)
		require.NoError(t, err)
		require.Equal(t, string(once), string(twice))
		restored, _, err := FilterUninject(once)
		require.NoError(t, err)
		_, _, err = FilterUninject(restored)
		require.NoError(t, err)
	})
}

// The timeout of half-closed connections requires a privileged init container.
func TestInjectCloseWait(t *testing.T) {
	p, _, err := inject(t, config(t), map[string]string{"config.linkerd.io/close-wait-timeout": "60s"}, nil)
	require.NoError(t, err)
	pod, err := newPod(p)
	require.NoError(t, err)
	var first struct {
		Args            []string
		SecurityContext struct{ Privileged bool }
	}
	require.NoError(t, convert(pod.inits[0], &first))
	require.Contains(t, strings.Join(first.Args, " "), "--timeout-close-wait-secs 60")
	require.True(t, first.SecurityContext.Privileged)
}

// The values are those of linkerd's webhook.
func TestOpaquePortsPatch(t *testing.T) {
	c := Default()
	const key = "/metadata/annotations/config.linkerd.io~1opaque-ports"
	ports := func(value string) map[string]string {
		return map[string]string{"config.linkerd.io/opaque-ports": value}
	}
	for name, tt := range map[string]struct {
		object      string
		namespace   map[string]string
		path, value string // of the patch; "" means no patch
	}{
		"no opaque port":          {`{"spec":{"ports":[{"port":80}]}}`, nil, "", ""},
		"service":                 {`{"spec":{"ports":[{"port":80},{"port":3306},{"port":25}]}}`, nil, "/metadata/annotations", "3306,25"},
		"target port":             {`{"spec":{"ports":[{"port":3306,"targetPort":80},{"port":81,"targetPort":25}]}}`, nil, "/metadata/annotations", "81"},
		"named target port":       {`{"spec":{"ports":[{"port":3306,"targetPort":"mysql"}]}}`, nil, "", ""},
		"pod":                     {`{"spec":{"containers":[{"ports":[{"containerPort":6379}]}]}}`, nil, "/metadata/annotations", "6379"},
		"namespace":               {`{"metadata":{"annotations":{"a":"b"}},"spec":{"ports":[{"port":3306}]}}`, ports("90-99"), key, "90-99"},
		"namespace with no ports": {`{"spec":{"ports":[{"port":3306}]}}`, ports(""), "/metadata/annotations", ""},
		"own annotation":          {`{"metadata":{"annotations":{"config.linkerd.io/opaque-ports":""}},"spec":{"ports":[{"port":25}]}}`, ports("90"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			patch, err := c.OpaquePortsPatch([]byte(tt.object), tt.namespace)
			require.NoError(t, err)
			if tt.path == "" {
				require.Empty(t, patch)
				return
			}
			var value any = tt.value
			if tt.path != key {
				value = map[string]any{"config.linkerd.io/opaque-ports": tt.value}
			}
			var operations []operation
			require.NoError(t, json.Unmarshal(patch, &operations))
			require.Equal(t, []operation{{"add", tt.path, value}}, operations)
		})
	}
}
