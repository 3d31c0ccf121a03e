package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/inject/webhook"
	"github.com/gotower/gotower/internal/kubetest"
)

// output is a log that tests read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const (
	configuration = "linkerd-proxy-injector-webhook-config"
	secret        = "linkerd-proxy-injector-k8s-tls"
	validator     = "linkerd-sp-validator"
)

// webhookConfiguration returns a configuration of a webhook at url.
func webhookConfiguration(url string, policy admissionregistrationv1.FailurePolicyType) *admissionregistrationv1.MutatingWebhookConfiguration {
	none, seconds := admissionregistrationv1.SideEffectClassNone, int32(5)
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: configuration},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "linkerd-proxy-injector.linkerd.io", SideEffects: &none, FailurePolicy: &policy, TimeoutSeconds: &seconds,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "services"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: "kubernetes.io/metadata.name", Operator: "NotIn", Values: []string{"kube-system"},
			}}},
		}},
	}
}

// running is a server that a test runs.
type running struct {
	*webhook.Server
	listen, admin string
	log           *output
	stop          func()
}

// run runs a server with new trust anchors. The URL in the configuration must be changed to
// its address.
func run(t *testing.T, client kubernetes.Interface, lifetime, overlap, interval time.Duration) *running {
	t.Helper()
	authority, err := ca.New("cluster.local")
	require.NoError(t, err)
	config := injector.Default()
	config.TrustAnchors = string(authority.TrustAnchors())
	r := &running{log: new(output)}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	ready := make(chan struct{})
	r.Server = &webhook.Server{
		Client: client, Config: func() (injector.Config, error) { return config, nil }, Log: log,
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Ready: func(listen, admin string) {
			r.listen, r.admin = listen, admin
			close(ready)
		},
		Certificates: []*webhook.Certificate{{
			Client: client, Namespace: "linkerd", Secret: secret, Configuration: configuration,
			Names:    []string{"linkerd-proxy-injector.linkerd.svc", "127.0.0.1"},
			Lifetime: lifetime, Overlap: overlap, Interval: interval, Log: log,
		}, {
			Client: client, Namespace: "linkerd", Secret: validator + "-k8s-tls", Configuration: validator + "-webhook-config", Validating: true,
			Names:    []string{validator + ".linkerd.svc"},
			Lifetime: lifetime, Overlap: overlap, Interval: interval, Log: log,
		}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-ready
	r.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	t.Cleanup(r.stop)
	return r
}

// until waits until the condition is true.
func until(t *testing.T, condition func() bool, message string) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 10*time.Millisecond, message)
}

// get returns the status and the body of a page of the admin server.
func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := client.Get("http://" + r.admin + path)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp.StatusCode, string(body)
}

// The answers to admission requests, over TLS with the certificate that the configuration
// trusts.
func TestServer(t *testing.T) {
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mesh", Annotations: map[string]string{"linkerd.io/inject": "enabled"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
	)
	r := run(t, client, 24*time.Hour, time.Minute, 10*time.Millisecond)
	until(t, func() bool { return strings.Contains(r.log.String(), `webhook configuration `+configuration) }, "it is missing")
	status, _ := r.get(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, _ = r.get(t, "/healthz")
	require.Equal(t, http.StatusOK, status)
	configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), webhookConfiguration("https://"+r.listen, "Fail"), metav1.CreateOptions{})
	require.NoError(t, err)
	until(t, r.Certificates[0].Ready, "the certificate of the injector")
	status, _ = r.get(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status, "that of the validator is missing")
	validations := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = validations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: validator + "-webhook-config"}, Webhooks: make([]admissionregistrationv1.ValidatingWebhook, 1),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	until(t, func() bool { status, _ := r.get(t, "/readyz"); return status == http.StatusOK }, "ready")
	config, err := configurations.Get(t.Context(), configuration, metav1.GetOptions{})
	require.NoError(t, err)
	validation, err := validations.Get(t.Context(), validator+"-webhook-config", metav1.GetOptions{})
	require.NoError(t, err)
	post := func(name string, bundle []byte, body string) (int, string) {
		t.Helper()
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(bundle))
		secure := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12},
		}}
		rsp, err := secure.Post("https://"+r.listen, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer rsp.Body.Close()
		answer, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		return rsp.StatusCode, string(answer)
	}
	inject := func(body string) (int, string) {
		t.Helper()
		return post("linkerd-proxy-injector.linkerd.svc", config.Webhooks[0].ClientConfig.CABundle, body)
	}
	review := func(namespace, kind, pod string) *admissionv1.AdmissionResponse {
		t.Helper()
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: "admission.k8s.io/v1"},
			Request: &admissionv1.AdmissionRequest{
				UID: "u", Namespace: namespace, Kind: metav1.GroupVersionKind{Version: "v1", Kind: kind},
				Object: runtime.RawExtension{Raw: []byte(pod)},
			},
		})
		require.NoError(t, err)
		status, answer := inject(string(body))
		require.Equal(t, http.StatusOK, status, answer)
		var out admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal([]byte(answer), &out))
		require.Equal(t, "AdmissionReview", out.Kind)
		require.EqualValues(t, "u", out.Response.UID)
		return out.Response
	}
	const pod = `{"metadata":{"generateName":"web-","annotations":{}},"spec":{"containers":[{"name":"web"}]}}`
	annotated := func(key, value string) string {
		return strings.Replace(pod, `"annotations":{}`, `"annotations":{"`+key+`":"`+value+`"}`, 1)
	}

	answer := review("mesh", "Pod", pod)
	require.True(t, answer.Allowed)
	require.Equal(t, admissionv1.PatchTypeJSONPatch, *answer.PatchType)
	var patch []struct{ Op, Path string }
	require.NoError(t, json.Unmarshal(answer.Patch, &patch))
	require.Equal(t, []struct{ Op, Path string }{
		{"add", "/metadata/annotations"}, {"add", "/metadata/labels"}, {"add", "/spec/containers"}, {"add", "/spec/volumes"},
	}[0], patch[0])
	require.NotContains(t, string(answer.Patch), "restartPolicy", "the version of the fake is 0")
	for _, skipped := range []*admissionv1.AdmissionResponse{
		review("plain", "Pod", pod), review("mesh", "Service", "{}"), review("mesh", "Pod", annotated("linkerd.io/inject", "disabled")),
	} {
		require.True(t, skipped.Allowed)
		require.Nil(t, skipped.Patch)
	}
	answer = review("plain", "Service", `{"spec":{"ports":[{"port":3306}]}}`)
	require.JSONEq(t, `[{"op":"add","path":"/metadata/annotations","value":{"config.linkerd.io/opaque-ports":"3306"}}]`, string(answer.Patch))
	answer = review("plain", "Pod", annotated("linkerd.io/inject", "enabled"))
	require.NotNil(t, answer.Patch)
	answer = review("mesh", "Pod", strings.Replace(pod, `"spec":{`, `"spec":{"hostNetwork":true,`, 1))
	require.True(t, answer.Allowed)
	require.Equal(t, []string{"the proxy was not injected: it uses the network of the node"}, answer.Warnings)
	answer = review("mesh", "Pod", annotated("config.linkerd.io/proxy-uid", "root"))
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Result.Message, `annotation config.linkerd.io/proxy-uid: "root" must be a number`)

	validate := func(spec string) *admissionv1.AdmissionResponse {
		t.Helper()
		status, answer := post(validator+".linkerd.svc", validation.Webhooks[0].ClientConfig.CABundle,
			`{"request":{"uid":"u","namespace":"plain","kind":{"group":"linkerd.io","version":"v1alpha2","kind":"ServiceProfile"},"object":{
			"metadata":{"name":"web.plain.svc.cluster.local","namespace":"plain"},"spec":`+spec+`}}}`)
		require.Equal(t, http.StatusOK, status, answer)
		var out admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal([]byte(answer), &out))
		return out.Response
	}
	answer = validate(`{"routes":[{"name":"r","condition":{"method":"GET"}}]}`)
	require.True(t, answer.Allowed)
	require.Nil(t, answer.Patch)
	answer = validate(`{"routes":[{"name":"r","condition":{"method":"GET"},"timeout":"soon"}]}`)
	require.False(t, answer.Allowed)
	require.Equal(t, `spec.routes[0].timeout "soon": want a duration, such as 250ms or 10s`, answer.Result.Message)

	status, _ = inject("{}")
	require.Equal(t, http.StatusBadRequest, status)
	status, _ = inject(`{"request":{"uid":"u","namespace":"none","kind":{"version":"v1","kind":"Pod"},"object":` + pod + `}}`)
	require.Equal(t, http.StatusInternalServerError, status, "the failurePolicy applies")
	_, metrics := r.get(t, "/metrics")
	for _, want := range []string{
		`proxy_inject_admission_responses_total{result="injected"} 2`, `{result="annotated"} 1`, `{result="denied"} 2`, `{result="validated"} 1`, `{result="error"} 2`,
		`{result="skipped"} 4`, "proxy_inject_cert_expiration_timestamp_seconds",
	} {
		require.Contains(t, metrics, want)
	}
}

// pod returns a pod that is changed by change, unless that is nil.
func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "default",
			Containers:         []corev1.Container{{Name: "web", Image: "nginx", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

// The API server injects pods by the webhook while its certificate rotates. The failurePolicy
// applies without it.
func TestRealAPIServerWebhook(t *testing.T) {
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("GOTOWER_TESTS=full runs it")
	}
	client := kubetest.New(t).Client(t, kubetest.Admin)
	for name, annotations := range map[string]map[string]string{
		"linkerd": nil, "mesh": {"linkerd.io/inject": "enabled", "config.linkerd.io/proxy-log-level": "debug"}, "plain": nil,
	} {
		_, err := client.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	const lifetime, overlap, interval = 9 * time.Second, time.Second, 100 * time.Millisecond
	r := run(t, client, lifetime, overlap, interval)
	run(t, client, lifetime, overlap, interval) // a second replica, which changes the same Secret
	configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), webhookConfiguration("https://"+r.listen, "Fail"), metav1.CreateOptions{})
	require.NoError(t, err)
	until(t, r.Certificates[0].Ready, "certificate")
	create := func(namespace string, p *corev1.Pod, options metav1.CreateOptions) (*corev1.Pod, error) {
		return client.CoreV1().Pods(namespace).Create(t.Context(), p, options)
	}
	until(t, func() bool {
		_, err := create("plain", pod("first", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	}, "the API server trusts the certificate")

	// Pods as the controllers of workloads create them.
	owned := func(kind, version string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.GenerateName, p.Name = p.Name+"-", ""
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, APIVersion: version, Name: "web", UID: "1"}}
			if kind == "Job" {
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
			}
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"pod": nil, "replicaset": owned("ReplicaSet", "apps/v1"), "statefulset": owned("StatefulSet", "apps/v1"),
		"daemonset": owned("DaemonSet", "apps/v1"), "job": owned("Job", "batch/v1"), "controller": owned("ReplicationController", "v1"),
		"init": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "busybox"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}}}
		},
		"ordinary": func(p *corev1.Pod) {
			p.Annotations = map[string]string{"config.linkerd.io/proxy-enable-native-sidecar": "false"}
		},
	} {
		got, err := create("mesh", pod(name, change), metav1.CreateOptions{})
		require.NoError(t, err, name)
		proxies := 0
		for _, c := range append(got.Spec.InitContainers, got.Spec.Containers...) {
			if c.Name == injector.ProxyName {
				proxies++
				require.Contains(t, c.Env, corev1.EnvVar{Name: "LINKERD2_PROXY_LOG", Value: "debug"}, "of the namespace")
				require.Equal(t, name != "ordinary", c.RestartPolicy != nil)
			}
		}
		require.Equal(t, 1, proxies, name)
		require.Equal(t, "linkerd", got.Labels["linkerd.io/control-plane-ns"])
	}
	service, err := client.CoreV1().Services("mesh").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 3306}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "3306", service.Annotations["config.linkerd.io/opaque-ports"])
	got, err := create("plain", pod("unmeshed", nil), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Empty(t, got.Spec.InitContainers)
	_, err = create("mesh", pod("denied", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"config.linkerd.io/proxy-cpu-limit": "much"}
	}), metav1.CreateOptions{})
	require.ErrorContains(t, err, "must be a quantity")

	// The certificate rotates without a failed admission.
	serials := map[string]bool{}
	var admissions atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for ctx.Err() == nil {
				_, err := create("mesh", pod("rotation", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if !assert.NoError(t, err) {
					return
				}
				admissions.Add(1)
			}
		})
	}
	until(t, func() bool {
		if cert, err := r.Certificates[0].Get(nil); err == nil {
			serials[cert.Leaf.SerialNumber.String()] = true
		}
		return len(serials) >= 4
	}, "three rotations")
	cancel()
	workers.Wait()
	require.False(t, t.Failed())
	t.Logf("%d admissions during %d rotations", admissions.Load(), len(serials)-1)

	// A caBundle that another program removes is written again.
	until(t, func() bool { return removeBundle(t, client) == nil }, "removed")
	until(t, func() bool {
		_, err := create("mesh", pod("repaired", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	}, "repaired")

	// Without the webhook, pods are rejected, or accepted without a proxy.
	r.stop()
	_, err = create("mesh", pod("closed", nil), metav1.CreateOptions{})
	require.ErrorContains(t, err, "failed calling webhook")
	config, err := configurations.Get(t.Context(), configuration, metav1.GetOptions{})
	require.NoError(t, err)
	ignore := admissionregistrationv1.Ignore
	config.Webhooks[0].FailurePolicy = &ignore
	_, err = configurations.Update(t.Context(), config, metav1.UpdateOptions{})
	require.NoError(t, err)
	until(t, func() bool {
		got, err = create("mesh", pod("open", nil), metav1.CreateOptions{})
		return err == nil
	}, "the API server reads the policy")
	require.Empty(t, got.Spec.InitContainers)

	stored, err := client.CoreV1().Secrets("linkerd").Get(t.Context(), secret, metav1.GetOptions{})
	require.NoError(t, err)
	log := r.log.String()
	require.Contains(t, log, "pod injected")
	for _, private := range []string{"PRIVATE KEY", "hunter2", kubetest.Admin, base64.StdEncoding.EncodeToString(stored.Data["tls.key"])[:40]} {
		require.NotContains(t, log, private)
	}
}

// removeBundle removes the caBundle from the configuration.
func removeBundle(t *testing.T, client kubernetes.Interface) error {
	t.Helper()
	configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configurations.Get(t.Context(), configuration, metav1.GetOptions{})
	if err != nil {
		return err
	}
	config.Webhooks[0].ClientConfig.CABundle = nil
	_, err = configurations.Update(t.Context(), config, metav1.UpdateOptions{})
	return err
}
