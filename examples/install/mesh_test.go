package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/internal/freeport"
)

// token returns a token of a service account, which it creates if necessary.
func (c *cluster) token(t *testing.T, namespace, account string, audience ...string) string {
	t.Helper()
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	_, _ = accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	token, err := accounts.CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audience}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return token.Status.Token
}

// kubeconfig writes a file for a client with a token.
func (c *cluster) kubeconfig(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: "+token+"}}]\n"+
		"clusters: [{name: a, cluster: {server: \"https://127.0.0.1:"+c.Port+"\", insecure-skip-tls-verify: true}}]\n"), 0o600))
	return file
}

// start runs a program until the test ends. The output is logged if the test fails.
func start(t *testing.T, program string, environ []string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(filepath.Base(program), out.String())
		}
	})
}

// The environment of an injected pod gets a certificate from the certificate authority of
// the manifests, with a token of the service account of the pod, and with no other.
func TestRealAPIServerCertificate(t *testing.T) {
	full(t)
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../identity", "../proxy").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := newCluster(t)
	manifests := render(t)
	c.apply(t, manifests)
	_, err = c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	authority, anchors := freeport.Addr(t), ""
	for _, o := range parse(t, manifests) {
		switch {
		case o.Metadata.Name == injector.AnchorsConfigMap:
			anchors = o.Data[injector.AnchorsKey]
		case o.Kind == "Secret":
			for name, text := range o.Data {
				data, err := base64.StdEncoding.DecodeString(text)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
			}
		case o.Kind == "Deployment" && o.Metadata.Name == "linkerd-identity":
			args := append(o.Spec.Template.Spec.Containers[0].Args, "-listen="+authority, "-dir="+dir,
				"-kubeconfig="+c.kubeconfig(t, c.token(t, "linkerd", "linkerd-identity")))
			start(t, filepath.Join(dir, "identity"), nil, args...)
		}
	}
	config := injector.Default()
	config.TrustAnchors = anchors
	injected, _, err := config.Filter([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: app}\n" +
		"spec: {serviceAccountName: web, containers: [{name: web, image: nginx}]}\n"))
	require.NoError(t, err)
	var pod corev1.Pod
	require.NoError(t, yaml.Unmarshal(injected, &pod))

	// ready reports whether a proxy with a token becomes ready.
	ready := func(token, timeout string) error {
		own := t.TempDir()
		file := filepath.Join(own, "token")
		require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
		admin := freeport.Addr(t)
		const prefix = "LINKERD2_PROXY_"
		environ := map[string]string{}
		fields := map[string]string{
			"metadata.name": "web", "metadata.namespace": "app", "spec.nodeName": "node", "spec.serviceAccountName": "web", "status.podIPs": "127.0.0.1",
		}
		for _, e := range pod.Spec.InitContainers[1].Env {
			value := e.Value
			if e.ValueFrom != nil {
				value = fields[e.ValueFrom.FieldRef.FieldPath]
			}
			for name, known := range environ {
				value = strings.ReplaceAll(value, "$("+name+")", known)
			}
			environ[e.Name] = value
		}
		maps.Copy(environ, map[string]string{
			prefix + "IDENTITY_DIR": own, prefix + "IDENTITY_TOKEN_FILE": file, prefix + "IDENTITY_SVC_ADDR": authority,
			prefix + "DESTINATION_SVC_ADDR": "127.0.0.1:1", prefix + "POLICY_SVC_ADDR": "127.0.0.1:1",
			prefix + "ADMIN_LISTEN_ADDR": admin, prefix + "CONTROL_LISTEN_ADDR": "127.0.0.1:0",
			prefix + "INBOUND_LISTEN_ADDR": "127.0.0.1:0", prefix + "OUTBOUND_LISTEN_ADDRS": "127.0.0.1:0",
		})
		var list []string
		for _, name := range slices.Sorted(maps.Keys(environ)) {
			list = append(list, name+"="+environ[name])
		}
		start(t, filepath.Join(dir, "proxy"), list)
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "proxy"), "await", admin, timeout).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	require.NoError(t, ready(c.token(t, "app", "web", injector.TokenAudience), "60s"))
	require.Error(t, ready(c.token(t, "app", "other", injector.TokenAudience), "2s"), "of another account")
	require.Error(t, ready(c.token(t, "app", "web"), "2s"), "for another audience")
}

// The program inject, with the flags and the rights of the manifests, keeps the certificates of
// the webhook configurations of the manifests. The API server then injects a pod by it, and validates
// ServiceProfiles. Services of type ExternalName replace kube-proxy.
func TestRealAPIServerInjector(t *testing.T) {
	full(t)
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "../inject").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := newCluster(t)
	manifests := render(t, "-failure-policy", "Fail", "-image", "example/gotower:v1")
	c.apply(t, manifests)
	listen := freeport.Addr(t)
	_, port, err := net.SplitHostPort(listen)
	require.NoError(t, err)
	for _, o := range parse(t, manifests) {
		switch {
		case o.Metadata.Name == injector.AnchorsConfigMap:
			require.NoError(t, os.WriteFile(filepath.Join(dir, "anchors"), []byte(o.Data[injector.AnchorsKey]), 0o600))
		case o.Kind == "Deployment" && o.Metadata.Name == "linkerd-proxy-injector":
			args := append(o.Spec.Template.Spec.Containers[0].Args, "-listen="+listen, "-admin=127.0.0.1:0", "-trust-anchors="+filepath.Join(dir, "anchors"),
				"-kubeconfig="+c.kubeconfig(t, c.token(t, "linkerd", "linkerd-proxy-injector")))
			start(t, filepath.Join(dir, "inject"), nil, args...)
		}
	}
	for _, service := range []string{"linkerd-proxy-injector", "linkerd-sp-validator"} {
		c.redirect(t, service, port)
	}

	create := func(namespace string) *corev1.Pod {
		t.Helper()
		c.token(t, namespace, "default") // creates the account
		var created *corev1.Pod
		require.Eventually(t, func() bool { // the API server learns of the certificate and the Service after a moment
			created, err = c.client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"},
				Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
			}, metav1.CreateOptions{})
			return err == nil
		}, time.Minute, 100*time.Millisecond, "the last error: %v", &err)
		return created
	}
	for namespace, annotations := range map[string]map[string]string{
		"app": {"linkerd.io/inject": "enabled"}, "plain": nil,
	} {
		_, err := c.client.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: annotations}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Empty(t, create("plain").Spec.InitContainers)
	containers := create("app").Spec.InitContainers
	require.Len(t, containers, 2)
	require.Equal(t, injector.ProxyName, containers[1].Name)
	require.Equal(t, "example/gotower:v1", containers[1].Image)
	require.Equal(t, corev1.ContainerRestartPolicyAlways, *containers[1].RestartPolicy, "a native sidecar")
	c.checkValidation(t)
}

// redirect lets the API server call a port of this machine instead of a Service.
func (c *cluster) redirect(t *testing.T, service, port string) {
	t.Helper()
	services := c.client.CoreV1().Services("linkerd")
	require.NoError(t, services.Delete(t.Context(), service, metav1.DeleteOptions{}))
	_, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	resource := "validatingwebhookconfigurations"
	if service == "linkerd-proxy-injector" {
		resource = "mutatingwebhookconfigurations"
	}
	_, err = c.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}).Patch(
		t.Context(), service+"-webhook-config", types.JSONPatchType,
		[]byte(`[{"op": "add", "path": "/webhooks/0/clientConfig/service/port", "value": `+port+`}]`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// checkValidation creates ServiceProfiles. The API server refuses wrong ones, with the mistake.
func (c *cluster) checkValidation(t *testing.T) {
	t.Helper()
	profiles := c.dynamic.Resource(schema.GroupVersionResource{Group: "linkerd.io", Version: "v1alpha2", Resource: "serviceprofiles"}).Namespace("app")
	profile := func(name, timeout string) *unstructured.Unstructured {
		u := new(unstructured.Unstructured)
		require.NoError(t, yaml.Unmarshal([]byte("apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {name: "+name+"}\n"+
			"spec: {routes: [{name: read, condition: {method: GET}, timeout: "+timeout+"}]}\n"), &u.Object))
		return u
	}
	const web = "web.app.svc.cluster.local"
	var created *unstructured.Unstructured
	var err error
	require.Eventually(t, func() bool {
		created, err = profiles.Create(t.Context(), profile(web, "300ms"), metav1.CreateOptions{})
		return err == nil
	}, time.Minute, 100*time.Millisecond, "the last error: %v", &err)
	const denied = `admission webhook "linkerd-sp-validator.linkerd.io" denied the request: `
	const mistake = denied + `spec.routes[0].timeout "soon": want a duration, such as 250ms or 10s`
	_, err = profiles.Create(t.Context(), profile("other.app.svc.cluster.local", "soon"), metav1.CreateOptions{})
	require.EqualError(t, err, mistake)
	_, err = profiles.Create(t.Context(), profile("web", "1s"), metav1.CreateOptions{})
	require.EqualError(t, err, denied+`metadata.name "web": want SERVICE.app.svc.cluster.local for a Service in the same namespace`)
	changed := profile(web, "soon")
	changed.SetResourceVersion(created.GetResourceVersion())
	_, err = profiles.Update(t.Context(), changed, metav1.UpdateOptions{})
	require.EqualError(t, err, mistake)
}
