package cluster

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

func TestParse(t *testing.T) {
	for args, want := range map[string][]Resource{
		"deploy/web":           {{"deployment", "n", "web"}},
		"deploy web":           {{"deployment", "n", "web"}},
		"po a b sts/c svc":     {{"pod", "n", "a"}, {"pod", "n", "b"}, {"statefulset", "n", "c"}, {"service", "n", ""}},
		"ns/emojivoto":         {{"namespace", "emojivoto", "emojivoto"}},
		"Deployments":          {{"deployment", "n", ""}},
		"ds/a rs/b job/c cj/d": {{"daemonset", "n", "a"}, {"replicaset", "n", "b"}, {"job", "n", "c"}, {"cronjob", "n", "d"}},
		"rc/a sa/b":            {{"replicationcontroller", "n", "a"}, {"serviceaccount", "n", "b"}},
		"":                     {},
	} {
		got, err := Parse(strings.Fields(args), "n")
		require.NoError(t, err)
		require.Equal(t, want, got, args)
	}
	for args, want := range map[string]string{
		"web":        `"web" is not a resource: must be KIND/NAME, where KIND is pod, namespace, deployment,`,
		"deploy/":    "must be KIND/NAME",
		"deploy/a/b": "must be KIND/NAME",
		"crd/x":      `"crd/x" is not a resource`,
	} {
		_, err := Parse(strings.Fields(args), "n")
		require.ErrorContains(t, err, want, args)
	}
	for arg, is := range map[string]bool{"deploy/web": true, "po": true, "127.0.0.1:4190": false, "https://web:4190": false, "ns:4190": false} {
		require.Equal(t, is, Is(arg), arg)
	}
	require.Equal(t, "k8s_job", Resource{Kind: "job"}.Label())
}

// owned returns the metadata of an object with a controller.
func owned(name, ownerKind, owner string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID("uid of " + name), Labels: map[string]string{"app": name}}
	if ownerKind != "" {
		m.OwnerReferences = []metav1.OwnerReference{{Kind: ownerKind, Name: owner, UID: types.UID("uid of " + owner), Controller: new(true)}}
	}
	return m
}

// running returns a running pod with a proxy.
func running(name, ownerKind, owner, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: owned(name, ownerKind, owner),
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: proxyContainer}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
}

// newCluster returns a Cluster with some objects. The channel receives a value when the pods
// are watched, because the fake client loses changes before.
func newCluster(objects ...runtime.Object) (*Cluster, *fake.Clientset, <-chan struct{}) {
	client, watching := fake.NewClientset(objects...), make(chan struct{}, 100)
	client.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	return &Cluster{
		Namespace: "n", selector: labels.Everything(), client: client, dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme, objects...),
		close: func() {}, owners: map[types.UID]owner{}, settle: time.Millisecond,
	}, client, watching
}

// Each kind of resource has the pods that belong to it.
func TestPods(t *testing.T) {
	t.Parallel()
	pending := running("pending", "StatefulSet", "db", "")
	account := running("account", "", "", "10.0.0.8")
	account.Spec.ServiceAccountName = "robot"
	c, _, _ := newCluster(
		&appsv1.Deployment{ObjectMeta: owned("web", "", "")}, &appsv1.ReplicaSet{ObjectMeta: owned("web-1", "Deployment", "web")},
		&appsv1.StatefulSet{ObjectMeta: owned("db", "", "")}, &appsv1.DaemonSet{ObjectMeta: owned("agent", "", "")},
		&batchv1.CronJob{ObjectMeta: owned("nightly", "", "")}, &batchv1.Job{ObjectMeta: owned("nightly-1", "CronJob", "nightly")},
		&corev1.ReplicationController{ObjectMeta: owned("old", "", "")}, &corev1.ServiceAccount{ObjectMeta: owned("robot", "", "")},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		&corev1.Service{ObjectMeta: owned("db", "", ""), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "db-0"}}},
		&corev1.Service{ObjectMeta: owned("external", "", "")},
		running("web-1-x", "ReplicaSet", "web-1", "10.0.0.1"), running("web-1-y", "ReplicaSet", "web-1", "10.0.0.2"),
		running("db-0", "StatefulSet", "db", "10.0.0.3"), running("agent-x", "DaemonSet", "agent", "10.0.0.4"),
		running("nightly-1-x", "Job", "nightly-1", "10.0.0.5"), running("old-x", "ReplicationController", "old", "10.0.0.6"),
		pending, account,
	)
	for target, want := range map[string]string{
		"deploy/web": "web-1-x web-1-y", "rs/web-1": "web-1-x web-1-y", "sts/db": "db-0", "ds/agent": "agent-x", "job/nightly-1": "nightly-1-x",
		"cj/nightly": "nightly-1-x", "rc/old": "old-x", "svc/db": "db-0", "sa/robot": "account", "po/db-0": "db-0", "deploy": "web-1-x web-1-y",
		"ns/n": "account agent-x db-0 nightly-1-x old-x web-1-x web-1-y", "deploy/web sts/db": "db-0 web-1-x web-1-y",
	} {
		resources, err := Parse(strings.Fields(target), "n")
		require.NoError(t, err)
		pods, err := c.Pods(t.Context(), resources)
		require.NoError(t, err, target)
		names := make([]string, 0, len(pods.Of))
		for _, p := range pods.Of {
			names = append(names, p.Name)
		}
		require.Equal(t, want, strings.Join(names, " "), target)
	}
	for target, want := range map[string]string{
		"deploy/none": `deployment/none: deployments.apps "none" not found`, "svc/external": "service/external: has no selector",
	} {
		resources, err := Parse([]string{target}, "n")
		require.NoError(t, err)
		_, err = c.Pods(t.Context(), resources)
		require.ErrorContains(t, err, want)
	}
	resources, err := Parse([]string{"deploy/web"}, "")
	require.NoError(t, err)
	_, err = c.Pods(t.Context(), resources)
	require.ErrorContains(t, err, "deployment/web: a name requires a namespace (-n)")
	expanded, err := c.Expand(t.Context(), []Resource{{Kind: "deployment"}})
	require.NoError(t, err)
	require.Equal(t, []Resource{{"deployment", "n", "web"}}, expanded)
}

// The ports and the identity of a proxy are those of its container.
func TestPodProxy(t *testing.T) {
	p := running("web", "", "", "fd00::1")
	got := newPod(p)
	require.Equal(t, []string{"[fd00::1]:4190", "[fd00::1]:4191", ""}, []string{got.Tap, got.Metrics, got.Identity})
	proxy := corev1.Container{
		Name: proxyContainer, Ports: []corev1.ContainerPort{{Name: "linkerd-admin", ContainerPort: 9991}},
		Env: []corev1.EnvVar{
			{Name: "_l5d_ns", Value: "linkerd"}, {Name: "_l5d_trustdomain", Value: "example.org"},
			{Name: "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", Value: "0.0.0.0:9990"},
			{Name: "LINKERD2_PROXY_IDENTITY_LOCAL_NAME", Value: "$(_pod_sa).$(_pod_ns).serviceaccount.identity.$(_l5d_ns).$(_l5d_trustdomain)"},
		},
	}
	p.Spec = corev1.PodSpec{InitContainers: []corev1.Container{proxy}, ServiceAccountName: "robot"} // a native sidecar
	got = newPod(p)
	require.Equal(t, "[fd00::1]:9990 [fd00::1]:9991 robot.n.serviceaccount.identity.linkerd.example.org",
		got.Tap+" "+got.Metrics+" "+got.Identity)
	p.Spec.InitContainers = nil
	require.False(t, newPod(p).Meshed())
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed} {
		p.Status.Phase = phase
		require.Nil(t, newPod(p))
	}
}

// Watch yields the pods after each change.
func TestWatch(t *testing.T) {
	t.Parallel()
	c, client, watching := newCluster(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, running("a", "", "", "10.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan string)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pods, err := range c.Watch(ctx, []Resource{{"namespace", "n", "n"}}) {
			if !assert.NoError(t, err) {
				return
			}
			names := ""
			for _, p := range pods.Of {
				names += p.Name
			}
			got <- names
		}
	}()
	next := func(before string) string { // the pods may be yielded twice
		for {
			if names := <-got; names != before {
				return names
			}
		}
	}
	require.Equal(t, "a", next(""))
	<-watching
	_, err := client.CoreV1().Pods("n").Create(t.Context(), running("b", "", "", "10.0.0.2"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "ab", next("a"))
	require.NoError(t, client.CoreV1().Pods("n").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	require.Equal(t, "b", next("ab"))
	cancel()
	<-done
}

// The configuration is that of kubectl.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, namespace: mine}}, {name: b, context: {cluster: b}}]
clusters: [{name: a, cluster: {server: "https://a.example"}}, {name: b, cluster: {server: "https://b.example"}}]
`), 0o600))
	t.Setenv("KUBECONFIG", path)
	for want, o := range map[string]Options{
		"https://a.example mine":    {},
		"https://a.example other":   {Namespace: "other"},
		"https://a.example ":        {AllNamespaces: true},
		"https://b.example default": {Context: "b"},
	} {
		c, err := Open(o)
		require.NoError(t, err)
		require.Equal(t, want, c.Server+" "+c.Namespace)
		c.Close()
	}
	for want, o := range map[string]Options{
		`context "c" does not exist`: {Context: "c"},
		"no such file":               {Kubeconfig: path + "x"},
		`selector "=": `:             {Selector: "="},
	} {
		_, err := Open(o)
		require.ErrorContains(t, err, want)
	}
}

// Metrics are added up over proxies, series that began again included.
func TestTraffic(t *testing.T) {
	text := `# HELP response_total Responses
response_total{direction="inbound",classification="success",tls="true"} 90
response_total{direction="inbound",classification="failure",tls="true"} 10 1700000000000
response_total{direction="outbound",dst_deployment="db",dst_namespace="n",classification="success"} 7
response_total{direction="outbound",dst_deployment="db",dst_namespace="other",classification="success"} 70
response_latency_ms_bucket{direction="inbound",le="10"} 50
response_latency_ms_bucket{direction="inbound",le="20"} 90
response_latency_ms_bucket{direction="inbound",le="+Inf"} 100
response_latency_ms_bucket{direction="inbound",le="x"} 100
tcp_open_connections{direction="inbound",peer="src"} 3
tcp_open_connections{direction="inbound",peer="dst"} 5
tcp_read_bytes_total{direction="inbound",peer="src",escaped="a\"},{b\\"} 1000
tcp_write_bytes_total{direction="inbound",peer="src"} 2000
process_start_time_seconds 17
broken{ 1
response_total{direction="inbound",classification="success} 1
# EOF
`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	var warned []error
	warn := func(err error) { warned = append(warned, err) }
	addr := strings.TrimPrefix(server.URL, "http://")
	pods := []Pod{{Name: "a", Tap: "1", Metrics: addr}, {Name: "b", Tap: "2", Metrics: "127.0.0.1:1"}, {Name: "unmeshed"}}
	all := scrape(t.Context(), pods, trafficMetrics(), warn)
	require.Len(t, all, 2)
	require.Nil(t, all[pods[1].key()])
	require.Len(t, warned, 1)
	require.ErrorContains(t, warned[0], "b: its metrics: ")

	traffic := Traffic{latency: map[float64]float64{}}
	before := series{`response_total{direction="inbound",classification="success",tls="true"}`: 40, `tcp_write_bytes_total{direction="inbound",peer="src"}`: 9999}
	traffic.add(before, all[pods[0].key()], nil)
	require.Equal(t, []float64{50, 10, 3, 1000, 2000}, []float64{traffic.Success, traffic.Failures, traffic.Open, traffic.Read, traffic.Written})
	traffic.add(nil, all[pods[0].key()], nil)
	require.Equal(t, []float64{140, 20, 6}, []float64{traffic.Success, traffic.Failures, traffic.Open})
	for q, want := range map[float64]time.Duration{0.25: 5 * time.Millisecond, 0.5: 10 * time.Millisecond, 0.7: 15 * time.Millisecond, 0.99: 20 * time.Millisecond} {
		got, ok := traffic.Quantile(q)
		require.True(t, ok)
		require.InDelta(t, want, got, 1000, "%v", q)
	}
	require.InDelta(t, 200, traffic.latency[math.Inf(1)], 0)
	outbound := Traffic{latency: map[float64]float64{}}
	outbound.add(nil, all[pods[0].key()], &Resource{"deployment", "n", "db"})
	require.InDelta(t, 7, outbound.Success, 0)
	_, ok := outbound.Quantile(0.5)
	require.False(t, ok)
}

// The decisions of several proxies are added up by server, route and authorization.
func TestDecisions(t *testing.T) {
	const (
		permitted = `{direction="inbound",srv_kind="default",srv_name="all-unauthenticated",route_kind="default",route_name="default",` +
			`authz_kind="default",authz_name="all-unauthenticated"`
		web    = `{srv_group="policy.linkerd.io",srv_kind="server",srv_name="web"`
		denied = `inbound_http_authz_deny_total` + web + `,route_kind="default",route_name="default"}`
		good   = `response_total` + permitted + `,classification="success"}`
	)
	rows := decisions{}
	first := series{
		good: 90, `response_total` + permitted + `,classification="failure"}`: 10, denied: 5,
		`response_latency_ms_bucket` + permitted + `,le="10"}`:                                                                      50,
		`response_latency_ms_bucket` + permitted + `,le="+Inf"}`:                                                                    100,
		`inbound_tcp_authz_deny_total` + web + `}`:                                                                                  2,
		`inbound_tcp_authz_allow_total` + web + `,authz_group="policy.linkerd.io",authz_kind="authorizationpolicy",authz_name="a"}`: 7,
		`response_total{direction="outbound",srv_kind="x",classification="success"}`:                                                1000,
	}
	rows.add(series{good: 40}, first)
	rows.add(nil, series{denied: 1})
	rows.add(series{denied: 1}, nil) // did not return its metrics
	require.Equal(t, decisions{
		{"default:all-unauthenticated", "default", "default/all-unauthenticated"}: {
			Route: "default", Server: "default:all-unauthenticated", Authorization: "default/all-unauthenticated",
			Success: 50, Failures: 10, latency: latencies{10: 50, math.Inf(1): 100},
		},
		{"web", "default", ""}:               {Route: "default", Server: "web", Denied: 6, latency: latencies{}},
		{"web", "", ""}:                      {Server: "web", Denied: 2, latency: latencies{}},
		{"web", "", "authorizationpolicy/a"}: {Server: "web", Authorization: "authorizationpolicy/a", latency: latencies{}},
	}, rows)
}

// The source of an edge is a pod of the targets, or the service account of a client elsewhere.
func TestEdges(t *testing.T) {
	const domain = ".serviceaccount.identity.linkerd.cluster.local"
	deployment := func(name string) Pod {
		return Pod{
			Namespace: "n", Name: name + "-1", Tap: name, Owners: []Resource{{"deployment", "n", name}}, Identity: name + "-sa.n" + domain,
		}
	}
	web, db := deployment("web"), deployment("db")
	metrics := map[string]series{
		web.key(): {
			`tcp_open_total{direction="outbound",peer="dst",tls="true",server_id="db-sa.n` + domain + `",dst_deployment="db",dst_namespace="n",dst_pod="db-1"}`: 1,
			`tcp_open_total{direction="outbound",peer="dst",no_tls_reason="not_provided_by_service_discovery",dst_deployment="old",dst_namespace="m"}`:          1,
			`tcp_open_total{direction="outbound",peer="src",dst_deployment="x"}`:                                                                                1,
			`tcp_open_total{direction="outbound",peer="dst",tls="true"}`:                                                                                        1, // outside of the cluster
		},
		db.key(): {
			`tcp_open_total{direction="inbound",peer="src",tls="true",client_id="web-sa.n` + domain + `"}`:       1,
			`tcp_open_total{direction="inbound",peer="src",tls="true",client_id="prometheus.viz` + domain + `"}`: 1,
			`tcp_open_total{direction="inbound",peer="src",no_tls_reason="no_tls_from_remote"}`:                  1,
			`tcp_open_total{direction="inbound",peer="dst",tls="true",client_id="prometheus.viz` + domain + `"}`: 1,
		},
	}
	require.Equal(t, []Edge{
		{Source: "web", SourceNamespace: "n", Destination: "old", DestinationNamespace: "m", NoTLS: "not_provided_by_service_discovery"},
		{Source: "web", SourceNamespace: "n", Destination: "db", DestinationNamespace: "n", ClientID: "web-sa.n", ServerID: "db-sa.n"},
		{Source: "prometheus", SourceNamespace: "viz", Destination: "db", DestinationNamespace: "n", ClientID: "prometheus.viz", ServerID: "db-sa.n"},
	}, edges([]Pod{web, db}, metrics, "deployment"))
	require.Len(t, edges([]Pod{web, db}, metrics, "pod"), 2, "not the Deployment old, which has no pod")
}

// The counters of a proxy whose first metrics are missing are not the traffic of the period. The
// period includes the time for which the first metrics of a proxy were awaited.
func TestTrafficFirstMetricsMissing(t *testing.T) {
	const wait = 50 * time.Millisecond
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			time.Sleep(wait)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`response_total{direction="inbound",classification="success"} 90` + "\n"))
	}))
	defer server.Close()
	pod := running("a", "", "", "127.0.0.1")
	pod.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", Value: strings.TrimPrefix(server.URL, "http://")}}
	c, _, _ := newCluster(pod)
	var warned []error
	all, err := c.Traffic(t.Context(), []Resource{{"pod", "n", "a"}}, nil, time.Millisecond, func(err error) { warned = append(warned, err) })
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, 1, all[0].Meshed)
	require.Zero(t, all[0].Success)
	require.GreaterOrEqual(t, all[0].Period, wait)
	require.Len(t, warned, 1)
}
