package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/inject/webhook"
	"github.com/gotower/gotower/examples/install/check"
	"github.com/gotower/gotower/examples/install/manifest"
	"github.com/gotower/gotower/internal/kubetest"
)

// cluster applies manifests to an API server, as kubectl apply --server-side does.
type cluster struct {
	*kubetest.Server

	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := kubetest.New(t)
	cfg := server.Config(kubetest.Admin)
	http, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(http.CloseIdleConnections)
	d, err := dynamic.NewForConfigAndClient(cfg, http)
	require.NoError(t, err)
	client := server.Client(t, kubetest.Admin)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	return &cluster{server, client, d, mapper}
}

// apply applies the documents in text, and returns the number of objects that changed.
func (c *cluster) apply(t *testing.T, text string, dryRun ...string) (changed int) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		u := new(unstructured.Unstructured)
		require.NoError(t, yaml.Unmarshal([]byte(document), &u.Object), document)
		kind := u.GroupVersionKind()
		mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			c.mapper.Reset()
			mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		}
		require.NoError(t, err, document)
		resource := c.dynamic.Resource(mapping.Resource).Namespace(u.GetNamespace())
		before := ""
		if old, err := resource.Get(t.Context(), u.GetName(), metav1.GetOptions{}); err == nil {
			before = old.GetResourceVersion()
		}
		body, err := json.Marshal(u.Object)
		require.NoError(t, err)
		after, err := resource.Patch(t.Context(), u.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
			FieldManager: "install", FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun,
		})
		require.NoError(t, err, document)
		if after.GetResourceVersion() != before {
			changed++
		}
	}
	return changed
}

// check returns the results of the checks that do not succeed, and the report as text.
func (c *cluster) check(t *testing.T, o check.Options) (problems []string, text string) {
	t.Helper()
	if o.Client == nil {
		o.Client = c.client
	}
	if o.Namespace == "" {
		o.Namespace = "linkerd"
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	report := check.Run(t.Context(), o)
	for _, category := range report.Categories {
		for _, r := range category.Checks {
			if r.Outcome != check.Success {
				require.NotEmpty(t, r.Hint)
				problems = append(problems, string(r.Outcome)+" "+r.Description+": "+r.Error)
			}
		}
	}
	var out bytes.Buffer
	require.NoError(t, report.Text(&out))
	return problems, out.String()
}

// makeReady sets the status of a Deployment, as its controller does when the pods are ready.
func (c *cluster) makeReady(t *testing.T, name string) {
	t.Helper()
	deployments := c.client.AppsV1().Deployments("linkerd")
	d, err := deployments.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	n := *d.Spec.Replicas
	d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas = d.Generation, n, n
	d.Status.ReadyReplicas, d.Status.AvailableReplicas = n, n
	_, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// runCertificates keeps the certificates of the injector with the rights of its service account.
func (c *cluster) runCertificates(t *testing.T) (stop func()) {
	t.Helper()
	token, err := c.client.CoreV1().ServiceAccounts("linkerd").CreateToken(t.Context(), "linkerd-proxy-injector",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	client := c.Client(t, token.Status.Token)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for service, validating := range map[string]bool{"linkerd-proxy-injector": false, "linkerd-sp-validator": true} {
		cert := &webhook.Certificate{
			Client: client, Namespace: "linkerd", Secret: service + "-k8s-tls", Configuration: service + "-webhook-config",
			Validating: validating, Names: []string{service + ".linkerd.svc"},
			Lifetime: webhook.DefaultLifetime, Overlap: time.Minute, Interval: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		all.Go(func() { cert.Run(ctx) })
		require.Eventually(t, cert.Ready, time.Minute, 10*time.Millisecond)
	}
	return func() { cancel(); all.Wait() }
}

// full skips a test that the long form runs.
func full(t *testing.T) {
	t.Helper()
	if os.Getenv("GOTOWER_TESTS") != "full" {
		t.Skip("GOTOWER_TESTS=full runs it")
	}
}

// The API server accepts the manifests, and the checks find missing objects.
func TestRealAPIServerInstall(t *testing.T) {
	full(t)
	c := newCluster(t)
	problems, text := c.check(t, check.Options{Pre: true})
	require.Empty(t, problems)
	require.Contains(t, text, "√ can create CustomResourceDefinitions\n")
	problems, _ = c.check(t, check.Options{Pre: true, Client: c.Client(t, kubetest.Guest)})
	require.Len(t, problems, 17)
	problems, text = c.check(t, check.Options{})
	require.Equal(t, []string{`error control plane namespace exists: namespaces "linkerd" not found`}, problems)
	require.Contains(t, text, "    hint: install the control plane")
	require.True(t, strings.HasSuffix(text, "Status check results are ×\n"))

	manifests := render(t)
	c.apply(t, manifests)
	for _, args := range [][]string{{"-ha", "-keep-identity"}, {"-failure-policy", "Fail", "-ipv6=false", "-native-sidecar=false", "-keep-identity"}} {
		c.apply(t, render(t, args...), metav1.DryRunAll)
	}
	c.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: mesh}\n")
	c.apply(t, render(t, "-namespace", "mesh", "-crds=false"), metav1.DryRunAll)
	require.Zero(t, c.apply(t, manifests), "a second time changes nothing")
	require.Zero(t, c.apply(t, render(t, "-keep-identity")), "an upgrade keeps the identity")

	problems, _ = c.check(t, check.Options{Pre: true})
	require.Len(t, problems, 2)
	require.Equal(t, `error control plane namespace does not already exist: the namespace "linkerd" exists`, problems[0])
	require.Regexp(t, `^warning definitions .* do not already exist: existing: .*grpcroutes.gateway.networking.k8s.io, .*$`, problems[1])
	problems, _ = c.check(t, check.Options{})
	require.Equal(t, []string{
		"error control plane pods are ready: linkerd-destination: 0 of 1 replicas are ready\nlinkerd-identity: 0 of 1 replicas are ready\n" +
			"linkerd-proxy-injector: 0 of 1 replicas are ready",
		"error caBundle for linkerd-proxy-injector has certificates: certificates in PEM are missing",
	}, problems)
	for _, name := range manifest.Components() {
		c.makeReady(t, name)
	}
	stop := c.runCertificates(t)
	stop()
	problems, text = c.check(t, check.Options{})
	require.Empty(t, problems)
	require.True(t, strings.HasSuffix(text, "Status check results are √\n"))
	require.Zero(t, c.apply(t, render(t, "-keep-identity")), "an upgrade keeps the caBundle")

	c.breakControlPlane(t)
	c.checkProxies(t)
}

// breakControlPlane removes and damages objects of the control plane, one by one.
func (c *cluster) breakControlPlane(t *testing.T) {
	t.Helper()
	ctx, gone := t.Context(), metav1.DeleteOptions{}
	problems, _ := c.check(t, check.Options{Now: time.Now().AddDate(0, 11, 0)})
	require.Len(t, problems, 1, "the issuer expires soon: %v", problems)
	require.Contains(t, problems[0], "warning issuer is valid for at least 60 days: CN=identity.linkerd.cluster.local is valid until")
	problems, _ = c.check(t, check.Options{Now: time.Now().AddDate(11, 0, 0)})
	require.Len(t, problems, 7, "all certificates have expired: %v", problems)
	problems, _ = c.check(t, check.Options{Client: c.Client(t, kubetest.Guest)})
	require.Contains(t, problems[0], "this user has no right for it")

	require.NoError(t, c.client.RbacV1().ClusterRoles().Delete(ctx, "linkerd-linkerd-destination", gone))
	require.NoError(t, c.client.CoreV1().ServiceAccounts("linkerd").Delete(ctx, "linkerd-identity", gone))
	secrets := c.client.CoreV1().Secrets("linkerd")
	issuer, err := secrets.Get(ctx, manifest.IssuerSecret, metav1.GetOptions{})
	require.NoError(t, err)
	other, err := manifest.NewIdentity("cluster.local")
	require.NoError(t, err)
	issuer.Data["tls.crt"], issuer.Data["tls.key"] = other.Issuer, other.Key
	_, err = secrets.Update(ctx, issuer, metav1.UpdateOptions{})
	require.NoError(t, err)
	tls, err := secrets.Get(ctx, "linkerd-proxy-injector-k8s-tls", metav1.GetOptions{})
	require.NoError(t, err)
	tls.Data["tls.crt"], tls.Data["tls.key"] = other.Issuer, other.Key
	_, err = secrets.Update(ctx, tls, metav1.UpdateOptions{})
	require.NoError(t, err)
	problems, _ = c.check(t, check.Options{})
	require.Len(t, problems, 4)
	for i, want := range []string{
		"error control plane ServiceAccounts exist: missing: linkerd-identity",
		"error control plane ClusterRoles exist: missing: linkerd-linkerd-destination",
		"error issuer is verified by the trust anchors: x509: certificate signed by unknown authority",
		"error certificate of linkerd-proxy-injector is verified by the caBundle: x509: ",
	} {
		require.Contains(t, problems[i], want)
	}
	require.NoError(t, c.client.AppsV1().Deployments("linkerd").Delete(ctx, "linkerd-identity", gone))
	problems, _ = c.check(t, check.Options{})
	require.Equal(t, []string{"error control plane Deployments exist: missing: linkerd-identity"}, problems)

	// The same manifests repair all but the issuer.
	c.apply(t, render(t, "-keep-identity"))
	c.makeReady(t, "linkerd-identity")
	stop := c.runCertificates(t)
	stop()
	problems, _ = c.check(t, check.Options{})
	require.Len(t, problems, 1)
}

// checkProxies checks pods with and without a proxy.
func (c *cluster) checkProxies(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for name, mode := range map[string]string{"app": "enabled", "empty": "disabled"} {
		_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"linkerd.io/inject": mode},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	anchors, err := c.client.CoreV1().ConfigMaps("linkerd").Get(ctx, injector.AnchorsConfigMap, metav1.GetOptions{})
	require.NoError(t, err)
	create := func(name string, inject bool, text string, ready bool) {
		raw := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: app}\n" +
			"spec: {serviceAccountName: default, containers: [{name: web, image: nginx}]}\n")
		if inject {
			config := injector.Default()
			config.TrustAnchors = text
			raw, _, err = config.Filter(raw)
			require.NoError(t, err)
		}
		var pod corev1.Pod
		require.NoError(t, yaml.Unmarshal(raw, &pod))
		created, err := c.client.CoreV1().Pods("app").Create(ctx, &pod, metav1.CreateOptions{})
		require.NoError(t, err)
		created.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: injector.ProxyName, Ready: ready}}
		_, err = c.client.CoreV1().Pods("app").UpdateStatus(ctx, created, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	proxies := func(namespace string) []string {
		problems, _ := c.check(t, check.Options{Proxy: true, ProxyNamespace: namespace})
		return slices.DeleteFunc(problems, func(s string) bool { return strings.Contains(s, "issuer") })
	}
	require.Equal(t, []string{"error data plane proxies exist: no pod has a proxy"}, proxies("empty"))
	require.Equal(t, []string{`error data plane namespace exists: namespaces "none" not found`}, proxies("none"))
	create("good", true, anchors.Data[injector.AnchorsKey], true)
	require.Empty(t, proxies("app"))
	other, err := manifest.NewIdentity("cluster.local")
	require.NoError(t, err)
	create("old", true, string(other.Anchors), true)
	create("starting", true, anchors.Data[injector.AnchorsKey], false)
	create("plain", false, "", false)
	require.Equal(t, []string{
		"error data plane proxies are ready: app/starting: the proxy is not ready",
		"warning data plane proxies have the trust anchors of the control plane: app/old: it has other trust anchors",
		"warning pods of injected namespaces have a proxy: app/plain: it has no proxy",
	}, proxies(""))
}

// The command prints a report as JSON, and fails if a check fails.
func TestRealAPIServerCheckCommand(t *testing.T) {
	full(t)
	c := newCluster(t)
	file := c.kubeconfig(t, kubetest.Admin)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"check", "-pre", "-kubeconfig", file, "-o", "json"}, &out, io.Discard))
	var report check.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	require.True(t, report.Success)
	require.Len(t, report.Categories, 3)
	require.ErrorIs(t, run(t.Context(), []string{"check", "-kubeconfig", file}, &out, io.Discard), errChecks)
	c.Kill(t)
	require.ErrorIs(t, run(t.Context(), []string{"check", "-kubeconfig", file}, &out, io.Discard), errChecks)
	require.Contains(t, out.String(), "× can query the Kubernetes API")
}
