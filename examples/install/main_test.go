package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/inject/webhook"
	"github.com/gotower/gotower/examples/install/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// render returns the output of install.
func render(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out, t.Output()))
	return out.String()
}

// object has the fields of a manifest that the tests read.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name, Namespace string
		Annotations     map[string]string
	} `json:"metadata"`
	Data  map[string]string `json:"data"`
	Rules []struct {
		Resources, Verbs, ResourceNames []string
	} `json:"rules"`
	Webhooks []struct{ FailurePolicy string } `json:"webhooks"`
	Spec     struct {
		Replicas int
		Template struct {
			Spec struct {
				SecurityContext            map[string]any
				InitContainers, Containers []struct {
					Name, Image     string
					Command, Args   []string
					SecurityContext struct {
						ReadOnlyRootFilesystem, AllowPrivilegeEscalation *bool
					}
				}
			}
		}
	} `json:"spec"`
}

func parse(t *testing.T, text string) (all []object) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		if strings.Contains(document, "kind: CustomResourceDefinition") {
			continue
		}
		var o object
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), new(any)), document)
		require.NoError(t, yaml.Unmarshal([]byte(document), &o), document)
		require.NotEmpty(t, o.Kind, document)
		all = append(all, o)
	}
	return all
}

func TestInstall(t *testing.T) {
	text := render(t, "-image", "example/gotower:v1")
	require.Equal(t, 14, strings.Count(text, "kind: CustomResourceDefinition\n"))
	count := map[string]int{}
	for _, o := range parse(t, text) {
		count[o.Kind]++
		require.NotEmpty(t, o.Metadata.Name)
		for _, rule := range o.Rules {
			require.NotContains(t, append(rule.Resources, rule.Verbs...), "*")
			if rule.Resources[0] == "secrets" && rule.Verbs[0] != "create" {
				require.NotEmpty(t, rule.ResourceNames)
			}
		}
		if o.Kind != "Deployment" {
			continue
		}
		require.Equal(t, 1, o.Spec.Replicas)
		containers := append(o.Spec.Template.Spec.Containers, o.Spec.Template.Spec.InitContainers...)
		for _, c := range containers {
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, c.Name)
			require.Contains(t, manifest.Programs(), strings.TrimPrefix(c.Command[0], "/"))
			if c.Name != "linkerd-init" {
				require.Equal(t, "example/gotower:v1", c.Image)
			}
		}
		if o.Metadata.Name == "linkerd-destination" {
			require.Len(t, containers, 3, "with its proxy")
		} else {
			require.Len(t, containers, 1)
		}
		if o.Metadata.Name == "linkerd-proxy-injector" {
			require.Contains(t, containers[0].Args, "-image=example/gotower:v1")
		}
	}
	require.Equal(t, map[string]int{
		"Namespace": 1, "ServiceAccount": 4, "ClusterRole": 3, "ClusterRoleBinding": 3, "Role": 3, "RoleBinding": 3, "ConfigMap": 2,
		"Secret": 1, "Service": 4, "Deployment": 3, "PodDisruptionBudget": 3, "NetworkPolicy": 3, "MutatingWebhookConfiguration": 1,
		"ValidatingWebhookConfiguration": 1,
	}, count)
}

func TestInstallOptions(t *testing.T) {
	for _, o := range parse(t, render(t, "-ha", "-namespace", "mesh", "-tap-account", "", "-crds=false", "-keep-identity")) {
		require.NotContains(t, []string{"linkerd-identity-trust-roots", manifest.IssuerSecret}, o.Metadata.Name)
		require.NotContains(t, []string{"linkerd"}, o.Metadata.Namespace)
		require.NotContains(t, o.Metadata.Name, "linkerd-linkerd")
		if o.Kind == "Deployment" {
			require.Equal(t, 3, o.Spec.Replicas)
		}
		for _, w := range o.Webhooks {
			require.Equal(t, "Fail", w.FailurePolicy)
		}
	}
}

// useless returns an identity with a self-signed issuer that lacks the key usage cert sign.
func useless(t *testing.T) manifest.Identity {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return manifest.Identity{Anchors: cert, Issuer: cert, Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})}
}

// The identity of files is printed, and an invalid one is an error that has no key.
func TestInstallIdentity(t *testing.T) {
	identity, err := manifest.NewIdentity("cluster.local")
	require.NoError(t, err)
	other, err := manifest.NewIdentity("cluster.local")
	require.NoError(t, err)
	file := func(name string, text []byte) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return path
	}
	args := func(i manifest.Identity) []string {
		return []string{"-trust-anchors", file("a", i.Anchors), "-issuer", file("i", i.Issuer), "-issuer-key", file("k", i.Key)}
	}
	for _, o := range parse(t, render(t, args(identity)...)) {
		switch o.Metadata.Name {
		case "linkerd-identity-trust-roots":
			require.Equal(t, strings.TrimSpace(string(identity.Anchors)), strings.TrimSpace(o.Data["ca-bundle.crt"]))
		case manifest.IssuerSecret:
			require.Equal(t, base64.StdEncoding.EncodeToString(identity.Key), o.Data["tls.key"])
		}
	}
	both := file("both", append(bytes.Clone(identity.Issuer), identity.Anchors...))
	render(t, "-trust-anchors", both, "-issuer", both, "-issuer-key", file("k", identity.Key))
	for want, args := range map[string][]string{
		"must be a certificate and its key":                 args(manifest.Identity{Anchors: identity.Anchors, Issuer: identity.Issuer, Key: other.Key}),
		"do not verify the issuer":                          args(manifest.Identity{Anchors: other.Anchors, Issuer: identity.Issuer, Key: identity.Key}),
		"the trust anchors have no certificate":             args(manifest.Identity{Anchors: []byte("x"), Issuer: identity.Issuer, Key: identity.Key}),
		"may not issue certificates":                        args(useless(t)),
		"must be given together":                            args(identity)[:2],
		"and without -keep-identity":                        append(args(identity), "-keep-identity"),
		"failure policy \"Never\": must be Ignore or Fail":  {"-failure-policy", "Never"},
		"INBOUND_DEFAULT_POLICY":                            {"-default-inbound-policy", "x"},
		"--iptables-mode: \"x\" must be":                    {"-iptables-mode", "x"},
		"arguments must be flags":                           {"chek"},
		"-o \"xml\": must be text or json":                  {"check", "-o", "xml"},
		"-n requires -proxy":                                {"check", "-n", "x"},
		"-pre: must be without -proxy":                      {"check", "-pre", "-proxy"},
		"/nonexistent":                                      {"check", "-kubeconfig", "/nonexistent"},
		"open /nonexistent/file: no such file or directory": {"-issuer", "/nonexistent/file"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), args, &out, &out)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "PRIVATE KEY")
		require.Empty(t, out.String())
	}
}

// rendered has the manifests of a control plane, by kind and name.
type rendered map[string]map[string]*unstructured.Unstructured

func renderObjects(t *testing.T, args ...string) rendered {
	t.Helper()
	all := make(rendered)
	for document := range strings.SplitSeq(render(t, args...), "\n---\n") {
		u := new(unstructured.Unstructured)
		require.NoError(t, yaml.Unmarshal([]byte(document), &u.Object), document)
		if all[u.GetKind()] == nil {
			all[u.GetKind()] = make(map[string]*unstructured.Unstructured)
		}
		all[u.GetKind()][u.GetName()] = u
	}
	return all
}

// has reports whether the objects of a kind exist and have the label by which linkerd check selects
// those of the control plane.
func (r rendered) has(kind string, names ...string) bool {
	for _, name := range names {
		u := r[kind][name]
		if u == nil || u.GetLabels()["linkerd.io/control-plane-ns"] == "" || u.GetLabels()["linkerd.io/cni-resource"] != "" {
			return false
		}
	}
	return true
}

// defines reports whether the API server has a version of a kind, by the name of its definition.
func (r rendered) defines(definition, version string) bool {
	u := r["CustomResourceDefinition"][definition]
	if u == nil {
		return false
	}
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(v any) bool {
		fields, ok := v.(map[string]any)
		served, _ := fields["served"].(bool)
		return ok && fields["name"] == version && served
	})
}

// certificates returns the certificates in a PEM block of a Secret or ConfigMap.
func certificates(t *testing.T, text string) (all []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		all = append(all, c)
	}
	require.NotEmpty(t, all)
	return all
}

// linkerdValues has the fields of the values in linkerd-config that linkerd check reads.
type linkerdValues struct {
	LinkerdVersion, ClusterNetworks    string
	DisableHeartBeat, HighAvailability bool
	Identity                           struct{ Issuer struct{ Scheme string } }
	ProxyInit                          struct{ RunAsRoot bool }
	Proxy                              struct {
		Image, Ports, Metrics, Resources *struct{}
	}
	DebugContainer struct{ Image *struct{} }
}

// The README lists each row of linkerd check that the control plane does not meet. The rules for the
// rows are those of pkg/healthcheck of linkerd2 edge-26.8 for objects, without the state of pods.
func TestLinkerdCheckRows(t *testing.T) {
	r := renderObjects(t, "-namespace", "mesh", "-image", "registry.example:5000/gotower:v1", "-ha")
	var values linkerdValues
	text, _, err := unstructured.NestedString(r["ConfigMap"]["linkerd-config"].Object, "data", "values")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal([]byte(text), &values))
	secret := func(key string) string {
		encoded, _, err := unstructured.NestedString(r["Secret"][manifest.IssuerSecret].Object, "data", key)
		require.NoError(t, err)
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		require.NoError(t, err)
		return string(decoded)
	}
	anchors, issuer := certificates(t, secret("ca.crt")), certificates(t, secret("tls.crt"))[0]
	bundle, _, err := unstructured.NestedString(r["ConfigMap"]["linkerd-identity-trust-roots"].Object, "data", "ca-bundle.crt")
	require.NoError(t, err)
	roots := x509.NewCertPool()
	supported := func(c *x509.Certificate) bool {
		key, ok := c.PublicKey.(*ecdsa.PublicKey)
		return ok && key.Params().BitSize == 256 && c.SignatureAlgorithm == x509.ECDSAWithSHA256
	}
	anchorsSupported := true
	for _, anchor := range anchors {
		roots.AddCert(anchor)
		anchorsSupported = anchorsSupported && supported(anchor)
	}
	_, verified := issuer.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	_, err = tls.X509KeyPair([]byte(secret("tls.crt")), []byte(secret("tls.key")))
	isPair := values.Identity.Issuer.Scheme == "kubernetes.io/tls" && err == nil
	networks := true
	for network := range strings.SplitSeq(values.ClusterNetworks, ",") {
		_, _, err := net.ParseCIDR(network)
		networks = networks && err == nil
	}
	components := true // by the labels of their pods
	for name, component := range map[string]string{
		"linkerd-destination": "destination", "linkerd-identity": "identity", "linkerd-proxy-injector": "proxy-injector",
	} {
		labels, _, err := unstructured.NestedStringMap(r["Deployment"][name].Object, "spec", "template", "metadata", "labels")
		require.NoError(t, err)
		components = components && labels["linkerd.io/control-plane-component"] == component
	}
	proxied, _, err := unstructured.NestedStringMap(r["Deployment"]["linkerd-destination"].Object, "spec", "template", "metadata", "labels")
	require.NoError(t, err)
	definitions := true // the last version of each definition of linkerd's chart
	for definition, version := range map[string]string{
		"authorizationpolicies.policy.linkerd.io": "v1alpha1", "egressnetworks.policy.linkerd.io": "v1alpha1",
		"httplocalratelimitpolicies.policy.linkerd.io": "v1alpha1", "httproutes.policy.linkerd.io": "v1beta3",
		"meshtlsauthentications.policy.linkerd.io": "v1alpha1", "networkauthentications.policy.linkerd.io": "v1alpha1",
		"serverauthorizations.policy.linkerd.io": "v1beta1", "servers.policy.linkerd.io": "v1beta3",
		"externalworkloads.workload.linkerd.io": "v1beta1", "serviceprofiles.linkerd.io": "v1alpha2",
	} {
		definitions = definitions && r.defines(definition, version)
	}
	mutator := r.isWebhook(t, "MutatingWebhookConfiguration", "linkerd-proxy-injector")
	validator := r.isWebhook(t, "ValidatingWebhookConfiguration", "linkerd-sp-validator")
	long := webhook.DefaultLifetime/3 >= 60*24*time.Hour // a certificate is renewed in its last third
	roles := []string{"linkerd-mesh-identity", "linkerd-mesh-proxy-injector"}

	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(readme), "\n## linkerd check\n")
	require.True(t, ok)
	_, unmet, ok := strings.Cut(section, "|---|---|---|\n")
	require.True(t, ok)
	unmet, _, _ = strings.Cut(unmet, "\n\n")
	for row, met := range map[string]bool{
		"Gateway API CRDs are installed": r.defines("httproutes.gateway.networking.k8s.io", "v1") &&
			r.defines("grpcroutes.gateway.networking.k8s.io", "v1"),
		"'linkerd-config' config map exists":                                         text != "",
		"heartbeat ServiceAccount exist":                                             values.DisableHeartBeat,
		"control plane pods are ready":                                               components,
		"cluster networks contains all node podCIDRs":                                networks,
		"cluster networks contains all pods":                                         networks,
		"cluster networks contains all services":                                     networks,
		"control plane Namespace exists":                                             r["Namespace"]["mesh"] != nil,
		"control plane ClusterRoles exist":                                           r.has("ClusterRole", roles...),
		"control plane ClusterRoleBindings exist":                                    r.has("ClusterRoleBinding", roles...),
		"control plane ServiceAccounts exist":                                        r.has("ServiceAccount", manifest.Components()...),
		"control plane CustomResourceDefinitions exist":                              definitions,
		"control plane MutatingWebhookConfigurations exist":                          mutator,
		"control plane ValidatingWebhookConfigurations exist":                        validator,
		"proxy-init container runs as root user if docker container runtime is used": values.ProxyInit.RunAsRoot,
		"certificate config is valid":                                                isPair,
		"trust anchors are using supported crypto algorithm":                         anchorsSupported,
		"trust anchors are within their validity period":                             valid(anchors, 0),
		"trust anchors are valid for at least 60 days":                               valid(anchors, 60),
		"issuer cert is using supported crypto algorithm":                            supported(issuer),
		"issuer cert is within its validity period":                                  valid([]*x509.Certificate{issuer}, 0),
		"issuer cert is valid for at least 60 days":                                  valid([]*x509.Certificate{issuer}, 60),
		"issuer cert is issued by the trust anchor":                                  verified == nil,
		"data plane proxies certificate match CA":                                    trustsOnly(t, bundle),
		"sp-validator webhook has valid cert":                                        validator,
		"sp-validator cert is valid for at least 60 days":                            validator && long,
		"proxy-injector webhook has valid cert":                                      mutator,
		"proxy-injector cert is valid for at least 60 days":                          mutator && long,
		"can retrieve the control plane version":                                     values.LinkerdVersion == "v1",
		"control plane proxies are healthy":                                          proxied["linkerd.io/control-plane-ns"] == "mesh",
		"multiple replicas of control plane pods":                                    values.HighAvailability,
	} {
		require.Equal(t, !met, strings.Contains(unmet, "`"+row+"`"), row)
	}
	// linkerd inject reads these without a test for null.
	proxy, debug := values.Proxy, values.DebugContainer
	require.NotContains(t, []*struct{}{proxy.Image, proxy.Ports, proxy.Metrics, proxy.Resources, debug.Image}, (*struct{})(nil))
}

// isWebhook reports whether a configuration has one webhook that calls a Service, for which the
// injector keeps a certificate.
func (r rendered) isWebhook(t *testing.T, kind, service string) bool {
	t.Helper()
	if !r.has(kind, service+"-webhook-config") || !r.has("Service", service) {
		return false
	}
	webhooks, _, err := unstructured.NestedSlice(r[kind][service+"-webhook-config"].Object, "webhooks")
	require.NoError(t, err)
	require.Len(t, webhooks, 1)
	first, _ := webhooks[0].(map[string]any)
	called, _, err := unstructured.NestedString(first, "clientConfig", "service", "name")
	require.NoError(t, err)
	rules, _, err := unstructured.NestedSlice(r["Role"]["linkerd-proxy-injector"].Object, "rules")
	require.NoError(t, err)
	return called == service && strings.Contains(fmt.Sprint(rules), service+"-k8s-tls")
}

// injectedPod returns a pod with a proxy of an image.
func injectedPod(t *testing.T, anchors, image string) (pod corev1.Pod) {
	t.Helper()
	config := injector.Default()
	config.TrustAnchors = anchors
	config.ProxyImage = image
	raw, _, err := config.Filter([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: app}\n" +
		"spec: {serviceAccountName: default, containers: [{name: web, image: nginx}]}\n"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, &pod))
	return pod
}

// trustsOnly reports whether an injected proxy has the trust anchors in the form that linkerd check compares.
func trustsOnly(t *testing.T, anchors string) bool {
	t.Helper()
	pod := injectedPod(t, anchors, "gotower:latest")
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, variable := range c.Env {
			if variable.Name == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS" {
				return strings.TrimSpace(variable.Value) == strings.TrimSpace(anchors)
			}
		}
	}
	return false
}

// valid reports whether the certificates are valid now and for the given number of days.
func valid(all []*x509.Certificate, days int) bool {
	for _, c := range all {
		if time.Now().Before(c.NotBefore) || time.Now().AddDate(0, 0, days).After(c.NotAfter) {
			return false
		}
	}
	return true
}
