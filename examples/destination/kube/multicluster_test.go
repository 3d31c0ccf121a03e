package kube

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/internal/kubetest"
)

// replicas returns a Service web with two pods in the mesh.
func replicas(network string) string {
	return strings.NewReplacer("NET", network).Replace(webService + `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [NET.1], targetRef: {kind: Pod, name: web-5d-1, namespace: shop}}
- {addresses: [NET.2], targetRef: {kind: Pod, name: web-5d-2, namespace: shop}}
` + "---" + strings.ReplaceAll(webPod, "PORTS", "1"))
}

// A federated Service has the endpoints of Services in this cluster and in linked clusters, and a
// mirror has those of a linked cluster. Their identities end with the trust domain of their cluster.
func TestFederatedService(t *testing.T) {
	c := fill(t, documents(t, replicas("10.0.0")+`---
apiVersion: v1
kind: Service
metadata:
  name: web-federated
  namespace: shop
  annotations: {multicluster.linkerd.io/local-discovery: web, multicluster.linkerd.io/remote-discovery: "web@west,web@none,gone@west, bad,web@west"}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata:
  name: web-remote
  namespace: shop
  annotations: {multicluster.linkerd.io/remote-discovery: web@west}
spec: {clusterIP: 10.96.0.21, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata:
  name: web-west
  namespace: shop
  labels: {multicluster.linkerd.io/remote-discovery: west, multicluster.linkerd.io/remote-service: web}
spec: {clusterIP: 10.96.0.22, ports: [{name: http, port: 80}]}
`)...)
	west := fill(t, documents(t, replicas("10.1.0"))...)
	west.settings.TrustDomain, west.settings.ClusterDomain = "west.example", "west.example"
	delete(west.stores, "ExternalWorkload") // a link has few kinds
	c.links = &links{byName: map[string]*link{"west": {cluster: west}}}
	get := func(name string) (found []string, uses []controller.Object) {
		d, uses := c.Destination(controller.Client{Namespace: "shop"}, name+".shop.svc.cluster.local", 80, true)
		require.False(t, d.Absent)
		for _, e := range d.Endpoints {
			found = append(found, fmt.Sprint(e.Addr, " ", e.Identity, " ", e.Labels["pod"]))
		}
		return found, uses
	}
	const account = " web.shop.serviceaccount.identity.linkerd."
	here := []string{"10.0.0.1:8080" + account + "cluster.local web-5d-1", "10.0.0.2:8080  "}
	there := []string{"10.1.0.1:8080" + account + "west.example web-5d-1", "10.1.0.2:8080  "}
	found, uses := get("web-federated")
	assert.Equal(t, slices.Concat(here, there), found)
	for _, o := range []controller.Object{
		{Kind: usesEndpoints, Namespace: "shop", Name: "web"}, {Kind: usesLink, Name: "west"}, {Kind: usesLink, Name: "none"},
		{Kind: usesEndpoints + "@west", Namespace: "shop", Name: "web"}, {Kind: usesPod + "@west", Namespace: "shop", Name: "web-5d-1"},
		{Kind: usesService + "@west", Namespace: "shop", Name: "gone"},
	} {
		assert.Contains(t, uses, o)
	}
	found, _ = get("web-remote")
	assert.Equal(t, there, found)
	found, _ = get("web-west")
	assert.Equal(t, there, found)
	c.links = nil
	found, _ = get("web-federated")
	assert.Equal(t, here, found)
}

// A kubeconfig must have its credentials inline, because a Secret must not run programs of the
// controller.
func TestLinkSecrets(t *testing.T) {
	const config = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443', CA}}]\nusers: [{name: u, user: {USER}}]\n"
	const both = "token: abc"
	data := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(nil)
	for name, tt := range map[string]struct {
		ca, user, domain, problem string
	}{
		"valid":      {data, both, "west.example", ""},
		"no domain":  {data, both, "", "are required"},
		"a CA file":  {"certificate-authority: /etc/ca.crt", both, "west.example", "must not name a file"},
		"token file": {data, "tokenFile: /var/run/token", "west.example", "must not name a file"},
		"a program": {
			data, "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}", "west.example",
			"must not name a file, a program",
		},
		"not YAML": {"}", both, "west.example", "kubeconfig: "},
		"an invalid CA": {
			"certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte("none")), both, "west.example", "certificates",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &links{settings: DefaultSettings(), log: slog.New(slog.DiscardHandler)}
			added, err := l.link(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{linkName: "west"}, Annotations: map[string]string{linkDomain: tt.domain, linkTrust: "west.example"},
				},
				Data: map[string][]byte{linkKey: []byte(strings.NewReplacer("CA", tt.ca, "USER", tt.user).Replace(config))},
			})
			if tt.problem != "" {
				require.ErrorContains(t, err, tt.problem)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "west.example", added.settings.TrustDomain)
			assert.Len(t, added.informers, 4)
		})
	}
}

// link returns the kubeconfig of a Secret that links s.
func (s *apiServer) link() []byte {
	cfg := s.Config(kubetest.Admin)
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: %q}}]\n",
		cfg.Host, cfg.BearerToken)
}

// A cluster is linked within a moment after its Secret is written, follows changes there, and is
// removed with the Secret. The linked cluster is the API server itself, so that the trust domain of the
// Secret shows which endpoints are from the link.
func TestRealAPIServerLink(t *testing.T) {
	s := newAPIServer(t)
	s.define(t)
	rights, err := os.ReadFile("rbac-links.yaml")
	require.NoError(t, err)
	s.apply(t, string(rights))
	a := s.start(t, "a", func(s *Settings) { s.LinkedClusters = true })
	s.apply(t, webService)
	s.apply(t, strings.ReplaceAll(webPod, "PORTS", "1"))
	s.apply(t, webSlice)
	s.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: web-federated, namespace: shop, annotations: {multicluster.linkerd.io/remote-discovery: web@west}}
spec: {clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]}
`)
	web := a.endpoints(t, "web-federated.shop.svc.cluster.local:80")
	serves := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return web.String() == want })
	}
	serves("true")
	secrets := s.Client(t, kubetest.Admin).CoreV1().Secrets("linkerd")
	_, err = secrets.Create(t.Context(), &corev1.Secret{
		Type: linkSecretType,
		ObjectMeta: metav1.ObjectMeta{
			Name: "cluster-credentials-west", Labels: map[string]string{linkName: "west"},
			Annotations: map[string]string{linkDomain: "west.example", linkTrust: "west.example"},
		},
		Data: map[string][]byte{linkKey: s.link()},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	const identity = "=web.shop.serviceaccount.identity.linkerd.west.example"
	serves("true 10.0.0.1:8080" + identity)
	s.apply(t, strings.ReplaceAll(webSlice, "endpoints: [", "endpoints: [{addresses: [10.0.0.2]}, "))
	serves("true 10.0.0.1:8080" + identity + " 10.0.0.2:8080")
	require.NoError(t, secrets.Delete(t.Context(), "cluster-credentials-west", metav1.DeleteOptions{}))
	serves("true")
	require.Empty(t, a.forbidden)
}
