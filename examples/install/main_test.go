package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

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
	require.Equal(t, 9, strings.Count(text, "kind: CustomResourceDefinition\n"))
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
		"Namespace": 1, "ServiceAccount": 4, "ClusterRole": 3, "ClusterRoleBinding": 3, "Role": 3, "RoleBinding": 3, "ConfigMap": 1,
		"Secret": 1, "Service": 3, "Deployment": 3, "PodDisruptionBudget": 3, "NetworkPolicy": 3, "MutatingWebhookConfiguration": 1,
	}, count)
}

func TestInstallOptions(t *testing.T) {
	for _, o := range parse(t, render(t, "-ha", "-namespace", "mesh", "-tap-account", "", "-crds=false", "-keep-identity")) {
		require.NotContains(t, []string{"ConfigMap", "Secret"}, o.Kind)
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
		switch o.Kind {
		case "ConfigMap":
			require.Equal(t, strings.TrimSpace(string(identity.Anchors)), strings.TrimSpace(o.Data["ca-bundle.crt"]))
		case "Secret":
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
