package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/identity/ca"
	identitykube "github.com/gotower/gotower/examples/identity/kube"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/internal/kubetest"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

const (
	tapName   = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local"
	caName    = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local"
	ownerText = "%s.emojivoto.serviceaccount.identity.linkerd.cluster.local"
)

// testNamespace is a namespace of a real API server. Its pods are proxies on loopback addresses.
type testNamespace struct {
	kubernetes.Interface
	*kubetest.Server

	authority *ca.Authority
	caAddr    string
	ctl       *controller.Controller
	ctlAddr   string
	files     string // directory with ca.pem, tap.pem and tap.key

	kubeconfig string
}

func newTestNamespace(t *testing.T) *testNamespace {
	t.Helper()
	s := kubetest.New(t)
	w := &testNamespace{Server: s, Interface: s.Client(t, kubetest.Admin), files: t.TempDir(), kubeconfig: s.Kubeconfig(t, kubetest.Admin, "emojivoto")}
	var err error
	w.authority, err = ca.New("cluster.local")
	require.NoError(t, err)
	serve := func(run func(ctx context.Context, l net.Listener) error) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-done)
		})
		return l.Addr().String()
	}
	reviewer := identitykube.NewReviewer(w.Interface, "linkerd", "cluster.local", slog.New(slog.DiscardHandler))
	w.caAddr = serve(func(ctx context.Context, l net.Listener) error {
		return ca.Serve(ctx, l, w.authority, func(ctx context.Context, name string, token []byte) error {
			if name == tapName {
				return reviewer.Check(ctx, name, token)
			}
			return nil // the pods have no kubelet
		}, caName)
	})
	w.ctl = controller.New(nil)
	w.ctlAddr = serve(w.ctl.Serve)
	key, _, err := identity.Request(tapName)
	require.NoError(t, err)
	chain, err := w.authority.Issue(tapName, key.Public())
	require.NoError(t, err)
	var certs []byte
	for _, c := range chain {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"ca.pem": w.authority.TrustAnchors(), "tap.pem": certs, "tap.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(w.files, name), data, 0o600))
	}
	return w
}

// args returns the flags for the cluster and for TLS.
func (w *testNamespace) args(args ...string) []string {
	return append(args, "--kubeconfig", w.kubeconfig, "--cacert", filepath.Join(w.files, "ca.pem"),
		"--cert", filepath.Join(w.files, "tap.pem"), "--key", filepath.Join(w.files, "tap.key"))
}

// pod creates a running pod with a proxy at ip. The object has the ports of the proxy.
func (w *testNamespace) pod(t *testing.T, name, account, ownerKind, owner, ip string, proxy *sidecar.Proxy) {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "emojivoto", Labels: map[string]string{"app": owner}},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "app", Image: "example.org/app"}},
		},
	}
	if ownerKind != "" {
		resource := map[string]string{"ReplicaSet": "replicasets", "StatefulSet": "statefulsets"}[ownerKind]
		o, err := w.AppsV1().RESTClient().Get().Namespace("emojivoto").Resource(resource).Name(owner).Do(t.Context()).Get()
		require.NoError(t, err)
		object, ok := o.(metav1.Object)
		require.True(t, ok)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: ownerKind, Name: owner, UID: object.GetUID(), Controller: new(true)}}
	}
	if proxy != nil {
		_, admin, err := net.SplitHostPort(proxy.Admin)
		require.NoError(t, err)
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "linkerd-proxy", Image: "example.org/proxy",
			Ports: []corev1.ContainerPort{{Name: "linkerd-admin", ContainerPort: int32(netip.MustParseAddrPort(proxy.Admin).Port())}},
			Env: []corev1.EnvVar{
				{Name: "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", Value: strings.Replace(proxy.Tap, ip, "0.0.0.0", 1)},
				{Name: "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", Value: "0.0.0.0:" + admin},
				{Name: "LINKERD2_PROXY_IDENTITY_SVC_ADDR", Value: strings.Replace(w.caAddr, "127.0.0.1", "linkerd-identity-headless.linkerd.svc.cluster.local.", 1)},
				{Name: "LINKERD2_PROXY_IDENTITY_SVC_NAME", Value: caName},
				{Name: "LINKERD2_PROXY_TAP_SVC_NAME", Value: tapName},
				{Name: "LINKERD2_PROXY_IDENTITY_LOCAL_NAME", Value: "$(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local"},
			},
		})
	}
	made, err := w.CoreV1().Pods("emojivoto").Create(t.Context(), p, metav1.CreateOptions{})
	require.NoError(t, err)
	made.Status = runningAt(ip)
	_, err = w.CoreV1().Pods("emojivoto").UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// runningAt is the status of a pod that is ready.
func runningAt(ip string) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
}

// proxy starts the proxy of a pod with the given service account at ip.
func (w *testNamespace) proxy(t *testing.T, account, ip string, change func(*settings.Settings)) (p *sidecar.Proxy, stop func()) {
	t.Helper()
	dir := t.TempDir()
	name := fmt.Sprintf(ownerText, account)
	require.NoError(t, identity.Generate(dir, name))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("token"), 0o600))
	vars := map[string]string{
		"LINKERD2_PROXY_DESTINATION_SVC_ADDR": w.ctlAddr, "LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES": ".",
		"LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS": "10.0.0.0/8",
		"LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR":         ip + ":0", "LINKERD2_PROXY_INBOUND_LISTEN_ADDR": ip + ":0",
		"LINKERD2_PROXY_ADMIN_LISTEN_ADDR": ip + ":0", "LINKERD2_PROXY_CONTROL_LISTEN_ADDR": ip + ":0",
		"LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD": "1s", "LINKERD2_PROXY_TAP_SVC_NAME": tapName,
		"LINKERD2_PROXY_IDENTITY_DIR": dir, "LINKERD2_PROXY_IDENTITY_TOKEN_FILE": filepath.Join(dir, "token"),
		"LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS": string(w.authority.TrustAnchors()), "LINKERD2_PROXY_IDENTITY_LOCAL_NAME": name,
		"LINKERD2_PROXY_IDENTITY_SVC_ADDR": w.caAddr, "LINKERD2_PROXY_IDENTITY_SVC_NAME": caName,
	}
	s, err := settings.Read(func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	})
	require.NoError(t, err)
	change(&s)
	p, err = sidecar.New(sidecar.Config{Settings: s}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var ended atomic.Bool
	stop = func() {
		if !ended.Swap(true) {
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return p, stop
}

func fixedAt(addr string) settings.Origin {
	return settings.Origin{Kind: settings.Fixed, Addr: netip.MustParseAddrPort(addr)}
}

const workloads = `apiVersion: v1
kind: Namespace
metadata: {name: linkerd-viz}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tap, namespace: linkerd-viz}
---
apiVersion: v1
kind: Namespace
metadata: {name: linkerd}
---
apiVersion: v1
kind: Namespace
metadata: {name: emojivoto}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: emojivoto}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: voting, namespace: emojivoto}
---
apiVersion: v1
kind: Service
metadata: {name: voting, namespace: emojivoto}
spec: {selector: {app: voting}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: emojivoto}
spec:
  selector: {matchLabels: {app: web-1}}
  template:
    metadata: {labels: {app: web-1}}
    spec: {containers: [{name: app, image: example.org/app}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: voting, namespace: emojivoto}
spec:
  serviceName: voting
  selector: {matchLabels: {app: voting}}
  template:
    metadata: {labels: {app: voting}}
    spec: {containers: [{name: app, image: example.org/app}]}`

// replicaSet creates the ReplicaSet of a Deployment, because no controller does it here.
func (w *testNamespace) replicaSet(t *testing.T, deployment, name string) {
	t.Helper()
	d, err := w.AppsV1().Deployments("emojivoto").Get(t.Context(), deployment, metav1.GetOptions{})
	require.NoError(t, err)
	w.Apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: %s
  namespace: emojivoto
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: %s, uid: %s, controller: true}]
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: app, image: example.org/app}]}`, name, deployment, d.UID))
}

// follow runs a command until its output has all texts, and calls step after the output has
// each of them.
type following struct {
	t      *testing.T
	out    *os.File
	err    safe
	cancel context.CancelFunc
	done   chan error
}

func (w *testNamespace) follow(t *testing.T, args ...string) *following {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{t: t, out: out, cancel: cancel, done: make(chan error, 1)}
	go func() { f.done <- run(ctx, w.args(args...), out, &f.err) }()
	return f
}

// until waits until the output and the warnings have a line that matches the pattern.
func (f *following) until(pattern string) {
	f.t.Helper()
	want := regexp.MustCompile(pattern)
	require.Eventually(f.t, func() bool { return want.MatchString(f.text()) }, time.Minute, 20*time.Millisecond, "%s\nis not in\n%s", pattern, f.text())
}

func (f *following) text() string {
	data, err := os.ReadFile(f.out.Name())
	require.NoError(f.t, err)
	return string(data) + f.err.String()
}

func (f *following) end() {
	f.t.Helper()
	f.cancel()
	require.NoError(f.t, <-f.done)
	require.NoError(f.t, f.out.Close())
}

// send sends requests to the service voting by the listener at addr, until ctx ends. A quarter
// of them fails.
func send(ctx context.Context, addr string) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		path := []string{"/api/vote/sushi", "/api/vote/pizza", "/api/vote/taco", "/api/vote/doughnut"}[i%4]
		if req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://voting.emojivoto"+path, http.NoBody); err == nil {
			if rsp, err := client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
			}
		}
		<-tick.C
	}
}

// All commands resolve their targets by a real API server. The pods are real proxies on
// loopback addresses, with mutual TLS. Pods come, go and cannot be reached.
func TestRealAPIServer(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("it takes a minute: GOTOWER_TESTS=full")
	}
	w := newTestNamespace(t)
	w.Apply(t, workloads)
	_, err := w.CoreV1().ConfigMaps("linkerd").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "linkerd-identity-trust-roots"},
		Data:       map[string]string{"ca-bundle.crt": string(w.authority.TrustAnchors())},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.replicaSet(t, "web", "web-1")
	app := httptest.NewServer(http.HandlerFunc(func(rsp http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/vote/doughnut" {
			rsp.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(rsp, "voted")
	}))
	t.Cleanup(app.Close)
	appAddr := app.Listener.Addr().String()
	const service = "10.9.8.7:80"
	voting0, _ := w.proxy(t, "voting", "127.0.41.2", func(s *settings.Settings) { s.Inbound.Origin = fixedAt(appAddr) })
	voting1, _ := w.proxy(t, "voting", "127.0.41.3", func(s *settings.Settings) { s.Inbound.Origin = fixedAt(appAddr) })
	web, _ := w.proxy(t, "web", "127.0.41.1", func(s *settings.Settings) { s.Outbound.Origin = fixedAt(service) })
	endpoint := func(pod string, p *sidecar.Proxy) controller.Endpoint {
		return controller.Endpoint{
			Addr: netip.MustParseAddrPort(p.Inbound), Identity: fmt.Sprintf(ownerText, "voting"),
			Labels: map[string]string{"pod": pod, "namespace": "emojivoto", "statefulset": "voting", "service": "voting"},
		}
	}
	require.NoError(t, w.ctl.Set(controller.Config{Destinations: map[string]controller.Destination{
		service:                                 {Profile: &controller.Profile{Name: "voting.emojivoto.svc.cluster.local"}},
		"voting.emojivoto.svc.cluster.local:80": {Endpoints: []controller.Endpoint{endpoint("voting-0", voting0), endpoint("voting-1", voting1)}},
	}}))
	w.pod(t, "web-1-x", "web", "ReplicaSet", "web-1", "127.0.41.1", web)
	w.pod(t, "voting-0", "voting", "StatefulSet", "voting", "127.0.41.2", voting0)

	// Requests of web to voting, until the end of the test.
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	for _, addr := range []string{web.Addr, voting0.Inbound, voting1.Inbound} { // the balancer of web prefers one endpoint
		sending.Go(func() { send(ctx, addr) })
	}

	t.Run("tap", func(t *testing.T) {
		f := w.follow(t, "tap", "ns/emojivoto", "--path", "/api/vote/", "--max-rps", "1000")
		f.until(`req id=\S+ proxy=out src=\S+ dst=127\.0\.41\.2:\d+ tls=true :method=POST .* pod=web-1-x\n`)
		f.until(`req id=\S+ proxy=in  src=127\.0\.\S+ dst=\S+ tls=true :method=POST .* pod=voting-0\n`)
		require.NotContains(t, f.text(), "pod=voting-1")
		w.pod(t, "voting-1", "voting", "StatefulSet", "voting", "127.0.41.3", voting1) // a pod comes
		f.until(`proxy=in .* pod=voting-1\n`)
		w.pod(t, "plain", "", "", "", "127.0.41.9", nil)
		f.until(`tapctl: plain: the pod has no proxy: inject it\n`)
		w.pod(t, "dead", "web", "ReplicaSet", "web-1", "127.0.41.8", &sidecar.Proxy{Admin: "127.0.41.8:9", Tap: "127.0.41.8:9"})
		f.until(`tapctl: dead: .*\n`)
		require.NoError(t, w.CoreV1().Pods("emojivoto").Delete(t.Context(), "voting-1", metav1.DeleteOptions{})) // a pod goes
		f.until(`end id=\S+ .* pod=voting-0\n`)
		late := time.Now().Add(waits)
		for seen := -1; seen != strings.Count(f.text(), "pod=voting-1"); time.Sleep(time.Second) {
			require.True(t, time.Now().Before(late), "its proxy is not watched any more")
			seen = strings.Count(f.text(), "pod=voting-1")
		}
		f.end()
	})
	for name, tt := range map[string]struct {
		args []string
		want string
		not  string
	}{
		"deployment":   {[]string{"tap", "deploy/web", "-o", "wide", "--for", "1s"}, " dst_statefulset=voting dst_tls=true", "proxy=in"},
		"owner labels": {[]string{"tap", "deploy/web", "-o", "wide", "--for", "1s"}, " src_deployment=web ", "pod=voting-0\n"},
		"source pod":   {[]string{"tap", "sts/voting", "-o", "wide", "--for", "1s"}, " dst_statefulset=voting", "proxy=out"},
		"to":           {[]string{"tap", "deploy/web", "--to", "sts/voting", "--for", "1s"}, "pod=web-1-x\n", "proxy=in"},
		"to service":   {[]string{"tap", "po/web-1-x", "--to", "svc/voting", "--for", "1s"}, "pod=web-1-x\n", "proxy=in"},
		"from":         {[]string{"tap", "svc/voting", "--from", "deploy/web", "--for", "1s"}, "proxy=out", "proxy=in"},
		"json":         {[]string{"tap", "sa/voting", "-o", "json", "--limit", "1"}, `"pod": "voting-0"`, "web-1-x\""},
		"top":          {[]string{"top", "deploy/web", "--once", "--for", "2s"}, "web-1-x                 voting-", "127.0.41.2"},
		"top to":       {[]string{"top", "ns/emojivoto", "--to", "sts/voting", "--once", "--for", "2s", "--hide-sources"}, "/api/vote/doughnut", "127.0.41.2"},
		"profile":      {[]string{"profile", "deploy/web", "--for", "2s"}, "kind: ServiceProfile", "web-1-x"},
		"endpoints":    {[]string{"endpoints", "deploy/web"}, "voting-0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := try(t, w.args(tt.args...)...)
			require.NoError(t, r.err, "%s%s", r.out, r.warnings)
			require.Contains(t, r.out, tt.want, r.warnings)
			if tt.not != "" {
				require.NotContains(t, r.out, tt.not)
			}
		})
	}
	t.Run("check", func(t *testing.T) {
		r := try(t, w.args("check", "sts/voting")...)
		require.NoError(t, r.err)
		require.Regexp(t, "(?s)^statefulset/voting -n emojivoto\n√ the API server https://127.0.0.1:"+w.Port+" answers v1\\.\\d+\\.\\d+\n"+
			"√ this user may read the pods and their owners\n√ the resources exist: statefulset/voting -n emojivoto\n"+
			"√ the trust anchors are valid for 60 days\n√ all running pods have a proxy\n√ all running pods report that they are ready\n"+
			"√ the certificates of all proxies \\(1\\) are valid\n√ the taps of all proxies \\(1\\) serve this client\n\n"+
			"Status check results are √\n$", r.out)
		r = try(t, w.args("check", "-n", "emojivoto")...)
		require.ErrorIs(t, r.err, errUnfit)
		require.Contains(t, r.out, "‼ all running pods have a proxy\n    1 of 4 do not: plain\n    Inject the workloads")
		require.Contains(t, r.out, "× the certificates of all proxies (3) are valid\n    not of dead: ")
		require.Contains(t, r.out, "× the taps of all proxies (3) serve this client\n    not of dead: ")
		r = try(t, "check", "sts/voting", "--kubeconfig", w.Kubeconfig(t, kubetest.Guest, "emojivoto"))
		require.ErrorIs(t, r.err, errUnfit)
		require.Contains(t, r.out, "may not list pods -n emojivoto, watch pods -n emojivoto, get replicasets.apps -n emojivoto")
		view, err := w.RbacV1().RoleBindings("emojivoto").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "guest"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { // when the API server has read the binding
			r = try(t, "check", "sts/voting", "--kubeconfig", w.Kubeconfig(t, kubetest.Guest, "emojivoto"), "-L", "mesh")
			return strings.Contains(r.out, "√ this user may read the pods and their owners\n")
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, w.RbacV1().RoleBindings("emojivoto").Delete(t.Context(), view.Name, metav1.DeleteOptions{}))
		require.Contains(t, r.out, "‼ this user may get the trust anchors and a certificate for the taps\n    may not "+
			"get configmaps linkerd-identity-trust-roots -n mesh, create serviceaccounts/tap --subresource=token -n linkerd-viz"+
			", list pods -n mesh\n")
		require.Contains(t, r.out, "the trust anchors are valid for 60 days\n    configmaps \"linkerd-identity-trust-roots\" is forbidden")
		r = try(t, w.args("check", "sts/none")...)
		require.ErrorIs(t, r.err, errUnfit)
		require.Contains(t, r.out, "× the resources exist: statefulset/none -n emojivoto")
	})
	t.Run("stat", func(t *testing.T) {
		r := try(t, w.args("stat", "deploy/web", "sts/voting", "svc/voting", "--for", "2s")...)
		require.NoError(t, r.err)
		require.Regexp(t, `(?m)^deployment/web +2/2 +- +- +- +- +- +0$`, r.out)
		require.Regexp(t, `(?m)^statefulset/voting +1/1 +7\d\.\d\d% +\d+\S* +\S+ +\S+ +\S+ +\d+$`, r.out)
		require.Regexp(t, `(?m)^service/voting +1/1 +7\d\.\d\d% `, r.out)
		require.Contains(t, r.warnings, "tapctl: dead: its metrics: ")
		r = try(t, w.args("stat", "deploy", "--to", "sts/voting", "--for", "2s", "-o", "json")...)
		require.NoError(t, r.err)
		var rows []traffic
		require.NoError(t, json.Unmarshal([]byte(r.out), &rows))
		require.Len(t, rows, 1)
		require.Equal(t, "web", rows[0].Name)
		require.InDelta(t, 0.75, *rows[0].Success, 0.05)
		require.Greater(t, rows[0].Rate, 5.0)
		require.Positive(t, *rows[0].P99)
		r = try(t, w.args("stat", "sts/voting", "--from", "deploy/web", "--for", "2s", "-o", "wide")...)
		require.NoError(t, r.err)
		require.Regexp(t, `(?m)^statefulset/voting +2/2 +7\d\.\d\d% .*/s$`, r.out)
		r = try(t, w.args("stat", "po", "-A", "--for", "1s")...)
		require.NoError(t, r.err)
		require.Regexp(t, `(?m)^pod/plain +0/1 +- `, r.out)
	})
	t.Run("authz and edges", func(t *testing.T) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			r := try(t, w.args("authz", "sts/voting", "--for", "2s")...)
			require.NoError(c, r.err)
			require.Regexp(c, `(?m)^ROUTE +SERVER +AUTHORIZATION +UNAUTHORIZED +SUCCESS +RPS +LATENCY_P50 +LATENCY_P95 +LATENCY_P99$`, r.out)
			require.Regexp(c, `(?m)^default +default:all-unauthenticated +default/all-unauthenticated +0\S* +\d+\.\d\d% +\d+\S* +\S+ +\S+ +\S+$`, r.out)
		}, time.Minute, time.Millisecond)
		r := try(t, w.args("authz", "sts/voting", "--for", "1s", "-o", "json")...)
		require.NoError(t, r.err)
		var rows []decision
		require.NoError(t, json.Unmarshal([]byte(r.out), &rows))
		require.NotEmpty(t, rows)
		r = try(t, w.args("edges", "po", "-o", "wide")...)
		require.NoError(t, r.err)
		require.Regexp(t, `(?m)^SRC +DST +SRC_NS +DST_NS +CLIENT_ID +SERVER_ID +SECURED$`, r.out)
		require.Regexp(t, `(?m)^web\S* +voting-0 +emojivoto +emojivoto +web\.emojivoto +voting\.emojivoto +√$`, r.out)
		require.ErrorIs(t, try(t, "edges", "127.0.0.1:4190").err, errOnlyCluster)
	})
	t.Run("errors", func(t *testing.T) {
		for want, args := range map[string][]string{
			`deployment/none: deployments.apps "none" not found`:          {"tap", "deploy/none"},
			`deployments.apps "web" not found`:                            {"stat", "deploy/web", "-n", "default"},
			"stat in a cluster reads metrics: must have no condition but": {"stat", "deploy/web", "--path", "/x"},
			"--from and --to exclude each other":                          {"tap", "deploy/web", "--to", "sts/voting", "--from", "sts/voting"},
			"--from requires one target with a name":                      {"tap", "deploy", "--from", "sts/voting"},
			`"127.0.0.1:4190" is not a resource: must be KIND/NAME`:       {"tap", "127.0.0.1:4190", "-n", "emojivoto"},
			`--to: "sts" must be KIND/NAME`:                               {"tap", "deploy/web", "--to", "sts"},
			"no running pod with a proxy":                                 {"endpoints", "po/plain"},
		} {
			r := try(t, w.args(args...)...)
			require.ErrorContains(t, r.err, want)
		}
		guest := w.Kubeconfig(t, kubetest.Guest, "emojivoto")
		r := try(t, "tap", "deploy/web", "--kubeconfig", guest)
		require.ErrorContains(t, r.err, `is forbidden: User "guest" cannot get resource "deployments"`)
	})
	// Without flags for TLS, the identity is that of the service account that may tap.
	t.Run("identity", func(t *testing.T) {
		watch := func(want string) {
			t.Helper()
			r := try(t, "tap", "sts/voting", "--kubeconfig", w.kubeconfig, "--limit", "1")
			require.NoError(t, r.err)
			require.Contains(t, r.out, "pod=voting-0") // in cleartext too, because it is on this machine
			require.Regexp(t, want, r.warnings)
		}
		watch("^tapctl: no certificate of " + tapName + `, without .*: no pod of linkerd-identity is ready\n`)
		w.Apply(t, `apiVersion: v1
kind: Pod
metadata: {name: linkerd-identity, namespace: linkerd, labels: {linkerd.io/control-plane-component: identity}}
spec: {containers: [{name: identity, image: example.org/identity}]}`)
		one, err := w.CoreV1().Pods("linkerd").Get(t.Context(), "linkerd-identity", metav1.GetOptions{})
		require.NoError(t, err)
		one.Status = runningAt("127.0.0.1")
		_, err = w.CoreV1().Pods("linkerd").UpdateStatus(t.Context(), one, metav1.UpdateOptions{})
		require.NoError(t, err)
		watch("^$")
		flags := clusterFlags{Options: cluster.Options{Kubeconfig: w.kubeconfig}, controlPlane: "linkerd"}
		p, err := flags.targets([]string{"sts/voting"}, &security{}, func(err error) { t.Error(err) })
		require.NoError(t, err)
		defer p.Close()
		all, err := p.current(t.Context(), func(err error) { t.Error(err) })
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.NotNil(t, all[0].proof)
		f := proves(t.Context(), all[0])
		require.NoError(t, f.err)
		require.Contains(t, f.what, "voting.emojivoto.serviceaccount.identity")
	})
	// The taps are followed while the API server is away.
	t.Run("outage", func(t *testing.T) {
		f := w.follow(t, "tap", "sts/voting")
		f.until("pod=voting-0")
		w.Kill(t)
		f.until("tapctl: the API server: ")
		r := try(t, w.args("check", "sts/voting")...)
		require.ErrorIs(t, r.err, errUnfit)
		require.Regexp(t, `(?s)× the API server https://127\.0\.0\.1:\d+ answers\n.*Check the kubeconfig`, r.out)
		seen := strings.Count(f.text(), "pod=voting-0")
		require.Eventually(t, func() bool { return strings.Count(f.text(), "pod=voting-0") > seen+3 }, time.Minute, 10*time.Millisecond)
		w.Start(t)
		w.pod(t, "voting-1", "voting", "StatefulSet", "voting", "127.0.41.3", voting1)
		f.until("pod=voting-1")
		f.end()
	})
}
