package kube

import (
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/internal/policytest"
)

var update = flag.Bool("update", false, "write the expected files of testdata")

// documents returns the objects in text, which is YAML.
func documents(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for part := range strings.SplitSeq(text, "\n---\n") {
		u := new(unstructured.Unstructured)
		data, err := yaml.YAMLToJSON([]byte(part))
		require.NoError(t, err, part)
		require.NoError(t, u.UnmarshalJSON(data), part)
		all = append(all, u)
	}
	return all
}

// fill returns a cluster with the objects.
func fill(t *testing.T, objects ...*unstructured.Unstructured) *cluster {
	t.Helper()
	stores := make(map[string]cache.Indexer)
	for _, kind := range slices.AppendSeq([]string{"Service", "Pod", "EndpointSlice", "Node", "Namespace"}, func(yield func(string) bool) {
		for kind := range resources {
			yield(kind)
		}
	}) {
		stores[kind] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers(kind))
	}
	for _, u := range objects {
		var o any = u
		typed := map[string]any{
			"Service": new(corev1.Service), "Pod": new(corev1.Pod), "EndpointSlice": new(discoveryv1.EndpointSlice),
			"Node": new(corev1.Node), "Namespace": new(corev1.Namespace),
		}
		if to := typed[u.GetKind()]; to != nil {
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, to))
			o = to
		}
		o, err := transform(kindOf(u))(o)
		require.NoError(t, err)
		again, err := transform(kindOf(u))(o)
		require.NoError(t, err)
		require.Same(t, o, again)
		require.NoError(t, stores[kindOf(u)].Add(o))
	}
	return newCluster(DefaultSettings(), slog.New(slog.DiscardHandler), stores)
}

// message returns m in the form of JSON.
func message(t *testing.T, m proto.Message) (v any) {
	t.Helper()
	text, err := protojson.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

// The file cluster.want.yaml has what the controller serves for names, addresses and ports
// of the objects in cluster.yaml, and the status of its routes.
func TestClusterServes(t *testing.T) {
	text, err := os.ReadFile("testdata/cluster.yaml")
	require.NoError(t, err)
	objects := documents(t, string(text))
	c := fill(t, objects...)
	got := make(map[string]any)
	for _, name := range []string{
		"web.shop.svc.cluster.local:80", "web.shop.svc.cluster.local:9000", "canary.shop.svc.cluster.local:80",
		"db.shop.svc.cluster.local:5432", "db-1.db.shop.svc.cluster.local:5432", "calls.shop.svc.cluster.local:8080",
		"outside.shop.svc.cluster.local:80", "gone.shop.svc.cluster.local:80", "example.com:80",
		"10.96.0.10:80", "10.0.0.1:8080", "10.0.0.1:9001", "10.0.0.20:7000", "192.0.2.7:80",
	} {
		i := strings.LastIndex(name, ":")
		port := parsePorts(name[i+1:])[0][0]
		d, uses := c.Destination(controller.Client{Namespace: "shop"}, strings.Trim(name[:i], "[]"), port, true)
		require.NoError(t, controller.New(nil).Set(controller.Config{Destinations: map[string]controller.Destination{name: d}}), name)
		entry := map[string]any{}
		policy := d.Policy
		d.Policy = nil
		entry["destination"] = d
		if policy != nil {
			require.NoError(t, policytest.Outbound(policy), name)
			entry["policy"] = message(t, policy)
		}
		names := []string{}
		for _, o := range uses {
			names = append(names, o.Kind+" "+o.Namespace+"/"+o.Name)
		}
		slices.Sort(names)
		entry["uses"] = names
		got[name] = entry
	}
	for workload, ports := range map[string][]uint16{
		`{"ns":"shop","pod":"web-5d-1"}`: {8080, 8081, 9000}, "shop:web-5d-2": {8081}, `{"ns":"shop","pod":"db-0"}`: {7000}, "": {80, 25},
	} {
		for _, port := range ports {
			msg, _ := c.Server(workload, port)
			require.NoError(t, policytest.Inbound(msg), workload)
			got[workload+" "+string(unstructuredText(jsonOf(t, port)))] = message(t, msg)
		}
	}
	for _, u := range objects {
		item, _, _ := c.stores[kindOf(u)].GetByKey(strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/"))
		if status, from := c.status(item); from != nil {
			got["status of "+kindOf(u)+" "+u.GetName()] = status
		}
	}
	const file = "testdata/cluster.want.yaml"
	have, err := yaml.Marshal(got)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, have, 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "go test -update writes the file")
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// An update has no effect if only the status or the version of an object changes. An object
// that was replaced by another one with the same name has changed.
func TestUnchanged(t *testing.T) {
	const pod = `{kind: Pod, metadata: {name: a, namespace: b, resourceVersion: "VERSION"}, status: {phase: Running, podIPs: [{ip: ADDR}]}}`
	const route = `{kind: HTTPRoute, metadata: {name: a, namespace: b, uid: UID, generation: 1, resourceVersion: "VERSION", labels: {l: LABEL}}, status: {x: VERSION}}`
	for _, test := range []struct {
		text          string
		before, after []string
		want          bool
	}{
		{pod, []string{"VERSION", "1", "ADDR", "10.0.0.1"}, []string{"VERSION", "2", "ADDR", "10.0.0.1"}, true},
		{pod, []string{"VERSION", "1", "ADDR", "10.0.0.1"}, []string{"VERSION", "2", "ADDR", "10.0.0.2"}, false},
		{route, []string{"VERSION", "1", "UID", "u"}, []string{"VERSION", "2", "UID", "u"}, true},
		{route, []string{"VERSION", "1", "UID", "u"}, []string{"VERSION", "2", "UID", "v"}, false},
		{route, []string{"VERSION", "1", "LABEL", "l"}, []string{"VERSION", "2", "LABEL", "m"}, false},
	} {
		var both []any
		for _, words := range [][]string{test.before, test.after} {
			u := documents(t, strings.NewReplacer(words...).Replace(test.text))[0]
			c := fill(t, u)
			both = append(both, c.stores[kindOf(u)].List()...)
		}
		require.Equal(t, test.want, unchanged(both[0], both[1]), test.after)
	}
}

// A null condition makes a ServiceProfile invalid.
func TestServiceProfileNullCondition(t *testing.T) {
	c := fill(t, documents(t, `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: {ports: [{port: 80}]}}
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: a.b.svc.cluster.local, namespace: b}
spec: {routes: [{name: r, condition: {all: [{any: [null]}]}}]}`)...)
	d, _ := c.Destination(controller.Client{}, "a.b.svc.cluster.local", 80, true)
	require.Equal(t, &controller.Profile{}, d.Profile)
}

// A client cannot have two identities, so a policy that requires two of them permits no client.
func TestTwoRequiredIdentities(t *testing.T) {
	const account, mesh = "{kind: ServiceAccount, name: web}", "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: m}"
	for refs, want := range map[string]int{
		account: 1, mesh: 1, account + "," + account: 0, account + "," + mesh: 0, mesh + "," + account: 0, mesh + "," + mesh: 0,
	} {
		c := fill(t, documents(t, `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: b}}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: a, namespace: b}, spec: {port: 80, podSelector: {}}}
---
{apiVersion: policy.linkerd.io/v1alpha1, kind: MeshTLSAuthentication, metadata: {name: m, namespace: b}, spec: {identities: [i.test]}}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: p, namespace: b}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: a}
  requiredAuthenticationRefs: [`+refs+`]`)...)
		var log strings.Builder
		c.log = slog.New(slog.NewTextHandler(&log, nil))
		s, _ := c.Server("b:p", 80)
		require.Len(t, s.GetAuthorizations(), want, refs)
		require.Equal(t, want == 0, strings.Contains(log.String(), "excludes an earlier reference"), log.String())
	}
}

// An invalid annotation of a Service affects neither its routes nor its other annotations.
func TestInvalidAnnotations(t *testing.T) {
	const web = `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b, annotations: {
	timeout.linkerd.io/request: TIMEOUT, balancer.linkerd.io/failure-accrual: consecutive,
	balancer.linkerd.io/failure-accrual-consecutive-max-failures: FAILURES}}, spec: {ports: [{port: 80}]}}`
	const named = `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: b}, spec: {
	parentRefs: [{group: core, kind: Service, name: a}], rules: [{}]}}`
	for _, test := range []struct {
		objects         []string
		accrual, routes bool
	}{
		{[]string{strings.NewReplacer("TIMEOUT", "1s", "FAILURES", "many").Replace(web), named}, false, true},
		{[]string{strings.NewReplacer("TIMEOUT", "1s", "FAILURES", "many").Replace(web)}, false, true},
		{[]string{strings.NewReplacer("TIMEOUT", "soon", "FAILURES", "'3'").Replace(web)}, true, false},
	} {
		c := fill(t, documents(t, strings.ReplaceAll(strings.Join(test.objects, "\n---\n"), "\t", " "))...)
		d, _ := c.Destination(controller.Client{}, "a.b.svc.cluster.local", 80, true)
		http := d.Policy.GetProtocol().GetDetect().GetHttp1()
		require.Equal(t, test.accrual, http.GetFailureAccrual() != nil, test.objects)
		require.Equal(t, test.routes, http.GetRoutes()[0].GetRules()[0].GetTimeouts() != nil, test.objects)
	}
}
