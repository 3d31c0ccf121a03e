package main

import (
	"bytes"
	"context"
	cryptotls "crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/internal/kubetest"
)

// gatewayAPI is the version of the module that has the CustomResourceDefinitions.
const gatewayAPI = "sigs.k8s.io/gateway-api@v1.6.2"

// resources are the resources of the kinds that the tests create.
var resources = map[string]schema.GroupVersionResource{
	"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	"GatewayClass":             {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gatewayclasses"},
	"Gateway":                  {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"},
	"HTTPRoute":                {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"},
	"TLSRoute":                 {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "tlsroutes"},
	"IngressClass":             {Group: "networking.k8s.io", Version: "v1", Resource: "ingressclasses"},
	"Ingress":                  {Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	"Service":                  {Version: "v1", Resource: "services"},
	"ClusterRole":              {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":       {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// cluster creates and reads objects of an API server.
type cluster struct {
	client dynamic.Interface
}

func newCluster(t *testing.T, cfg *rest.Config) *cluster {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	d, err := dynamic.NewForConfigAndClient(cfg, client)
	require.NoError(t, err)
	return &cluster{d}
}

// create creates the objects in text, which is YAML.
func (c *cluster) create(t *testing.T, text string) {
	t.Helper()
	for part := range strings.SplitSeq(text, "\n---\n") {
		u := new(unstructured.Unstructured)
		require.NoError(t, yaml.Unmarshal([]byte(part), &u.Object), part)
		require.Contains(t, resources, u.GetKind(), part)
		_, err := c.client.Resource(resources[u.GetKind()]).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func (c *cluster) patch(t *testing.T, kind, namespace, name, patch string) {
	t.Helper()
	_, err := c.client.Resource(resources[kind]).Namespace(namespace).
		Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// status returns the status of an object as JSON.
func (c *cluster) status(t *testing.T, kind, namespace, name string) string {
	t.Helper()
	u, err := c.client.Resource(resources[kind]).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	text, err := json.Marshal(u.Object["status"])
	require.NoError(t, err)
	return string(text)
}

// untilStatus waits until the status of an object has the texts, without regard to the time of a
// transition.
func (c *cluster) untilStatus(t *testing.T, kind, namespace, name string, texts ...string) {
	t.Helper()
	status := ""
	defer func() {
		if t.Failed() {
			t.Log(kind, name, status)
		}
	}()
	until(t, func() bool {
		status = c.status(t, kind, namespace, name)
		for _, text := range texts {
			if !strings.Contains(status, text) {
				return false
			}
		}
		return true
	})
}

// createDefinitions creates the CustomResourceDefinitions of the Gateway API.
func (c *cluster) createDefinitions(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", gatewayAPI)
	cmd.Dir = t.TempDir() // outside of a module
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, &stderr)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	for _, name := range []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "tlsroutes", "referencegrants"} {
		text, err := os.ReadFile(filepath.Join(module.Dir, "config", "crd", "standard", "gateway.networking.k8s.io_"+name+".yaml"))
		require.NoError(t, err)
		c.create(t, string(text))
	}
}

// kubeconfig returns the configuration of a client with the given token.
func kubeconfig(s *kubetest.Server, token string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: "%s"}}]
`, s.Port, token)
}

// The gateway serves Gateways and Ingresses of a kube-apiserver with the rights of
// kubernetes.yaml. Changes lose no request, and the status of the objects is written.
func TestRealAPIServer(t *testing.T) {
	server := kubetest.New(t)
	c := newCluster(t, server.Config(kubetest.Admin))
	manifest, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	for part := range strings.SplitSeq(string(manifest), "\n---\n") {
		if strings.Contains(part, "kind: ClusterRole") { // the account is the user "guest"
			c.create(t, strings.ReplaceAll(part, "kind: ServiceAccount, name: gateway, namespace: default", "kind: User, name: guest"))
		}
	}
	public, tls, ingress := freeport.Addr(t), freeport.Addr(t), freeport.Addr(t)
	port := func(address string) string {
		_, p, err := net.SplitHostPort(address)
		require.NoError(t, err)
		return p
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(kubeconfig(server, kubetest.Guest)), 0o600))
	p := startFile(t, writeIn(t, dir, `
admin: {address: "127.0.0.1:0", tap: "off"}
accessLog: {format: "off"}
kubernetes: {kubeconfig: kubeconfig, addresses: [192.0.2.1], ingressHTTP: "`+ingress+`", ingressHTTPS: "`+tls+`"}
`))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.log)
		}
	})
	// The API server rejects endpoints with loopback addresses. Therefore routes are recognized by
	// redirects, and a Service has no endpoints.
	get := func(address, path string) (int, string) {
		a, err := p.send(t.Context(), "GET", "http://"+address+path, "", "Host: books.example")
		if err != nil {
			return 0, err.Error()
		}
		return a.StatusCode, a.Header.Get("Location")
	}
	redirects := func(address, path, want string) {
		t.Helper()
		until(t, func() bool { _, location := get(address, path); return location == want })
	}
	responds := func(address, path string, want int) {
		t.Helper()
		until(t, func() bool { code, _ := get(address, path); return code == want })
	}

	// Without the definitions of the Gateway API, Ingresses are served.
	c.create(t, `
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: default}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: gotower}
spec: {controller: github.com/gotower/gateway}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: books, namespace: default}
spec:
  ingressClassName: gotower
  rules:
  - {host: books.example, http: {paths: [{path: /books, pathType: Prefix, backend: {service: {name: empty, port: {name: http}}}}]}}
`)
	responds(ingress, "/books", http.StatusServiceUnavailable)
	responds(ingress, "/other", http.StatusNotFound)
	c.untilStatus(t, "Ingress", "default", "books", `"ip":"192.0.2.1"`)

	c.createDefinitions(t)
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer unused.Close()
	gateway := `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: gotower}
spec: {controllerName: github.com/gotower/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: public, namespace: default}
spec:
  gatewayClassName: gotower
  addresses: [{type: IPAddress, value: 127.0.0.1}]
  listeners:
  - {name: http, port: ` + port(public) + `, protocol: HTTP}
  - {name: taken, port: ` + port(unused.Addr().String()) + `, protocol: HTTP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: books, namespace: default}
spec:
  parentRefs: [{name: public, sectionName: http}]
  hostnames: [books.example]
  rules:
  - matches: [{path: {type: PathPrefix, value: /books}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: v1.example, port: 80}}]
  - matches: [{path: {type: PathPrefix, value: /none}}]
    backendRefs: [{name: none, port: 80}]
`
	until(t, func() bool { // the API server serves new definitions after a moment
		_, err1 := c.client.Resource(resources["HTTPRoute"]).List(t.Context(), metav1.ListOptions{})
		_, err2 := c.client.Resource(resources["TLSRoute"]).List(t.Context(), metav1.ListOptions{})
		return err1 == nil && err2 == nil
	})
	c.create(t, gateway)
	redirects(public, "/books", "http://v1.example/books")
	responds(public, "/none", http.StatusInternalServerError)
	responds(public, "/other", http.StatusNotFound)
	c.untilStatus(t, "GatewayClass", "", "gotower", `"reason":"Accepted","status":"True"`)
	c.untilStatus(t, "Gateway", "default", "public", `"reason":"ListenersNotValid","status":"True","type":"Accepted"`,
		`"attachedRoutes":1`, `"reason":"PortUnavailable","status":"False"`, `"reason":"Programmed","status":"True"`)
	c.untilStatus(t, "HTTPRoute", "default", "books", `"reason":"Accepted","status":"True"`, `"reason":"BackendNotFound","status":"False"`)

	// Requests during changes of the route are not lost.
	ctx, stop := context.WithCancel(t.Context())
	var sent, failed atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if code, _ := get(public, "/books"); code != http.StatusFound {
				failed.Add(1)
			}
			sent.Add(1)
		}
	}()
	for _, name := range []string{"v2", "v1", "v2"} {
		c.patch(t, "HTTPRoute", "default", "books", `{"spec":{"rules":[{"filters":[{"type":"RequestRedirect",`+
			`"requestRedirect":{"hostname":"`+name+`.example","port":80}}]}]}}`)
		redirects(public, "/books", "http://"+name+".example/books")
	}
	stop()
	<-done
	assert.Zero(t, failed.Load(), "of %d requests", sent.Load())
	c.untilStatus(t, "HTTPRoute", "default", "books", `"observedGeneration":4,"reason":"ResolvedRefs","status":"True"`)

	// The file explains requests by the routes of the cluster.
	var text bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"explain", p.file, "GET", "http://books.example/books"}, &text, p.log))
	assert.Contains(t, text.String(), "route    http.default.books.0.0")
	assert.Contains(t, text.String(), "service  empty.default.port-80: kubernetes empty.default:80")

	// TLSRoutes select connections by the server name.
	passthrough := freeport.Addr(t)
	c.create(t, `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: passthrough, namespace: default}
spec:
  gatewayClassName: gotower
  addresses: [{type: IPAddress, value: 127.0.0.1}]
  listeners:
  - {name: tls, port: `+port(passthrough)+`, protocol: TLS, hostname: "*.example", tls: {mode: Passthrough}}
  - {name: other, port: `+port(passthrough)+`, protocol: TLS, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: orders, namespace: default}
spec:
  parentRefs: [{name: passthrough, sectionName: tls}]
  hostnames: [orders.example, orders.invalid]
  rules: [{backendRefs: [{name: empty, port: 80}]}]
`)
	c.untilStatus(t, "Gateway", "default", "passthrough", `"attachedRoutes":1`, `"kind":"TLSRoute"`, `"reason":"Programmed","status":"True"`)
	c.untilStatus(t, "TLSRoute", "default", "orders", `"reason":"Accepted","status":"True"`, `"reason":"ResolvedRefs","status":"True"`)
	for name, outcome := range map[string]string{"orders.example": "no_endpoint", "orders.invalid": "no_route", "books.example": "direct_response"} {
		until(t, func() bool {
			conn, err := (&cryptotls.Dialer{Config: &cryptotls.Config{ServerName: name, MinVersion: cryptotls.VersionTLS12}}).
				DialContext(t.Context(), "tcp", passthrough)
			if err == nil {
				conn.Close()
			}
			metrics, _ := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
			series := `gateway_tcp_connections_total{listener="ip-127-0-0-1-port-` + port(passthrough) + `",outcome="` + outcome + `"`
			return strings.Contains(metrics.body, series)
		})
	}

	// Routes are served while the API server is not, and followed afterwards.
	server.Kill(t)
	redirects(public, "/books", "http://v2.example/books")
	server.Start(t)
	c.patch(t, "HTTPRoute", "default", "books", `{"spec":{"parentRefs":[{"name":"other"}]}}`)
	responds(public, "/books", http.StatusNotFound)
	c.untilStatus(t, "HTTPRoute", "default", "books", `"parents":[]`)
}
