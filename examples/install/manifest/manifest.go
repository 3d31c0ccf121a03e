package manifest

import (
	"bytes"
	_ "embed" // for control-plane.yaml
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	destination "github.com/gotower/gotower/examples/destination/kube"
	identity "github.com/gotower/gotower/examples/identity/kube"
	"github.com/gotower/gotower/examples/inject/injector"
)

//go:embed control-plane.yaml
var controlPlane string

// Options are an installation's options. The fields of [injector.Config] also configure the
// control plane.
type Options struct {
	injector.Config

	HA            bool   // three replicas of each component, on different nodes
	FailurePolicy string // the webhooks': Ignore or Fail
	CRDs          bool   // render the CustomResourceDefinitions
	KeepIdentity  bool   // leave out the trust anchors and the issuer, for an upgrade
	Identity      Identity
}

// IssuerSecret is the name of the Secret with the issuer's certificate and key.
const IssuerSecret = "linkerd-identity-issuer"

// component is one of the control plane's Deployments.
type component struct {
	Name, Component, Program, Account, Memory string
	Args                                      []string
	Ports, ProxyPorts                         []int
	Probe                                     int // port for /healthz and /readyz; 0 for no probes
	Mounts                                    []string
}

// Components returns the names of the control plane's Deployments, which their ServiceAccounts
// share.
func Components() []string {
	return []string{"linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"}
}

// CRDs returns the names of the CustomResourceDefinitions that the controller reads.
func CRDs() (names []string) {
	// The documents are separated by lines, and comments may precede the first.
	for document := range strings.SplitSeq(destination.CRDs(), "\n---\n") {
		var crd struct{ Metadata struct{ Name string } }
		if err := yaml.Unmarshal([]byte(document), &crd); err == nil && crd.Metadata.Name != "" {
			names = append(names, crd.Metadata.Name)
		}
	}
	return names
}

// Programs returns the names of the programs that the images must contain.
func Programs() []string { return []string{"destination", "identity", "inject", "init", "proxy"} }

// Directories in which the containers mount the issuer and the trust anchors.
const (
	issuerDir  = "/var/run/linkerd/issuer"
	anchorsDir = "/var/run/linkerd/trust-roots"
)

// components returns the Deployments of the control plane with what differs between them.
func (o Options) components() []component {
	// account returns the identity of a ServiceAccount of the control plane.
	account := func(name string) string {
		return name + "." + o.Namespace + ".serviceaccount.identity." + o.Namespace + "." + o.TrustDomain
	}
	return []component{
		{
			Name: "linkerd-destination", Component: "destination", Program: "destination", Account: "linkerd-destination", Memory: "1Gi",
			Args: []string{
				"-kubernetes", fmt.Sprintf("-listen=:%d", injector.DestinationPort), "-controller-namespace=" + o.Namespace,
				"-cluster-domain=" + o.ClusterDomain, "-identity-trust-domain=" + o.TrustDomain,
				"-default-opaque-ports=" + o.OpaquePorts, "-default-inbound-policy=" + o.DefaultPolicy,
				"-cluster-networks=" + o.ClusterNetworks,
			},
			Ports: []int{injector.DestinationPort}, ProxyPorts: []int{4143, 4190, 4191},
		},
		{
			Name: "linkerd-identity", Component: "identity", Program: "identity", Account: "linkerd-identity", Memory: "250Mi",
			Args: []string{
				"-kubernetes", "-dir=" + issuerDir, fmt.Sprintf("-listen=:%d", injector.IdentityPort), "-namespace=" + o.Namespace,
				"-trust-domain=" + o.TrustDomain, "-name=" + account("linkerd-identity"),
			},
			Ports: []int{injector.IdentityPort}, Mounts: []string{"issuer"},
		},
		{
			Name: "linkerd-proxy-injector", Component: "proxy-injector", Program: "inject", Account: "linkerd-proxy-injector",
			Memory: "250Mi",
			Args: append([]string{
				"-webhook", "-validate", "-trust-anchors=" + anchorsDir + "/" + injector.AnchorsKey,
			}, o.injectorFlags()...),
			Ports: []int{8443, 9995}, Probe: 9995, Mounts: []string{"trust-roots"},
		},
	}
}

// injectorFlags returns the flags for the injector that differ from the defaults.
func (o Options) injectorFlags() (args []string) {
	// The same flags are defined twice, once with the defaults and once with the values of o.
	defaults := flag.NewFlagSet("", flag.ContinueOnError)
	values := flag.NewFlagSet("", flag.ContinueOnError)
	d := injector.Default()
	injector.AddFlags(defaults, &d)
	injector.AddFlags(values, &o.Config)
	values.VisitAll(func(f *flag.Flag) {
		if f.Value.String() != defaults.Lookup(f.Name).Value.String() {
			args = append(args, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return args
}

// Render returns the control plane's objects as YAML documents. It returns an error if an option
// is invalid.
func (o Options) Render() ([]byte, error) {
	if o.FailurePolicy != "Ignore" && o.FailurePolicy != "Fail" {
		return nil, fmt.Errorf("failure policy %q: must be Ignore or Fail", o.FailurePolicy)
	}
	if err := o.Identity.check(); err != nil {
		return nil, err
	}
	// The injector's configuration is validated together with the anchors.
	o.TrustAnchors = string(o.Identity.Anchors)
	if err := o.Validate(); err != nil {
		return nil, err
	}
	replicas := 1
	if o.HA {
		replicas = 3
	}
	parsed, err := template.New("control-plane.yaml").Funcs(template.FuncMap{"quote": quote}).Parse(controlPlane)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = parsed.Execute(&text, struct {
		Options

		Version                                 string
		Replicas, DestinationPort, IdentityPort int
		Components                              []component
	}{o, injector.Version(o.ProxyImage), replicas, injector.DestinationPort, injector.IdentityPort, o.components()})
	if err != nil {
		return nil, err
	}
	// The first document is the namespace, which must exist before everything else.
	first, rest, ok := strings.Cut(text.String(), "---\n")
	if !ok {
		return nil, errors.New("manifest: control-plane.yaml has one document only")
	}
	rest, err = o.inject(rest)
	if err != nil {
		return nil, err
	}
	documents := []string{first}
	if o.CRDs {
		documents = append(documents, destination.CRDs())
	}
	// The rights are written for the namespace linkerd.
	documents = append(documents, labeled(renamed(destination.RBAC+"---\n"+identity.RBAC(identity.Namespace), o.Namespace), o.Namespace))
	if !o.KeepIdentity {
		documents = append(documents, labeled(o.Identity.manifests(o.Namespace), o.Namespace))
	}
	documents = append(documents, labeled(rest, o.Namespace))
	return []byte(strings.Join(documents, "---\n")), nil
}

// labeled returns the manifests in text with the label by which linkerd's command line finds the
// objects of a control plane.
func labeled(text, namespace string) string {
	return strings.ReplaceAll(text, "metadata: {name: ", "metadata: {labels: {linkerd.io/control-plane-ns: "+namespace+"}, name: ")
}

// inject adds the proxy to the controller's Deployment. The other servers do without a proxy: the
// certificate authority serves TLS itself, and the injector brings its own certificate.
func (o Options) inject(documents string) (string, error) {
	config := o.Config
	// The controller's proxy connects to the controller in its own pod.
	config.Controller = true
	all := strings.Split(documents, "\n---\n")
	for i, document := range all {
		// All other documents stay as they are.
		if !strings.Contains(document, "kind: Deployment\n") || !strings.Contains(document, "name: linkerd-destination\n") {
			continue
		}
		out, reports, err := config.Filter([]byte(document + "\n"))
		if err != nil {
			return "", err
		}
		// Without a proxy, nobody could reach the controller by TLS.
		if len(reports) != 1 || reports[0].Skipped != "" {
			return "", fmt.Errorf("manifest: the controller was not injected: %v", reports)
		}
		// Filter begins its output with a separator, which Join adds again.
		all[i] = strings.TrimSuffix(strings.TrimPrefix(string(out), "---\n"), "\n")
	}
	return strings.Join(all, "\n---\n"), nil
}

// renamed returns the manifests in text for the given namespace. The manifests in text are
// for the namespace linkerd.
func renamed(text, namespace string) string {
	return strings.NewReplacer(
		"namespace: linkerd}", "namespace: "+namespace+"}", "name: linkerd-linkerd-", "name: linkerd-"+namespace+"-",
	).Replace(text)
}

// quote returns s as a quoted YAML string.
func quote(s string) (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// manifests returns the ConfigMap with the trust anchors and the Secret with the issuer.
func (i Identity) manifests(namespace string) string {
	// The certificates are a block in YAML, whose lines are indented.
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(string(i.Anchors)), "\n", "\n    ")
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: %s, namespace: %s}
data:
  %s: |
%s
---
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: %s}
type: kubernetes.io/tls
data:
  ca.crt: %s
  tls.crt: %s
  tls.key: %s
`, injector.AnchorsConfigMap, namespace, injector.AnchorsKey, indented,
		IssuerSecret, namespace, encode(i.Anchors), encode(i.Issuer), encode(i.Key))
}
