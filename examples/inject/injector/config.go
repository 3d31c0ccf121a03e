package injector

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/gotower/gotower/examples/init/redirect"
)

// Config holds the settings that are the same for all pods. A pod's annotations override some of
// them.
type Config struct {
	Namespace     string // namespace of the control plane
	ClusterDomain string // domain of Service names
	TrustDomain   string // trust domain of the identities
	TrustAnchors  string // certificates in PEM; without any, proxies use neither identities nor TLS

	ProxyImage string // image with the program proxy
	InitImage  string // image with the program init and iptables
	PullPolicy string // for both images

	ClusterNetworks string // CIDRs of pods and Services, separated by commas
	DefaultPolicy   string // inbound policy for ports that no other policy covers
	OpaquePorts     string // ports without protocol detection, such as "25,3306"
	TapAccount      string // service account, or account.namespace, that may tap; "" turns tap off
	IptablesMode    string // nft, legacy or plain
	IPv6            bool   // also redirect and accept IPv6
	Native          bool   // the proxy is a native sidecar

	// DestinationAddr and PolicyAddr are the addresses, as host:port, of another control plane than
	// gotower's. Both default to the Service linkerd-dst-headless.
	DestinationAddr, PolicyAddr string

	// Controller means that the pod runs the destination controller. The proxy of the pod
	// then connects to this controller on localhost, and reads the trust anchors from
	// [AnchorsConfigMap].
	Controller bool
}

// Default returns the settings of a control plane in the namespace linkerd, without trust
// anchors.
func Default() Config {
	return Config{
		Namespace: "linkerd", ClusterDomain: "cluster.local", TrustDomain: "cluster.local",
		ProxyImage: "gotower:latest", InitImage: "gotower-init:latest", PullPolicy: "IfNotPresent",
		ClusterNetworks: "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8",
		DefaultPolicy:   "all-unauthenticated",
		OpaquePorts:     "25,587,3306,4444,5432,6379,9300,11211",
		TapAccount:      "tap",
		IptablesMode:    "nft", IPv6: true, Native: true,
	}
}

// AddFlags defines the flags that set the fields of c, except TrustAnchors and Controller.
func AddFlags(f *flag.FlagSet, c *Config) {
	// The current values of c are the defaults.
	f.StringVar(&c.Namespace, "namespace", c.Namespace, "`namespace` of the control plane")
	f.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "`domain` of the names of Services")
	f.StringVar(&c.TrustDomain, "trust-domain", c.TrustDomain, "trust `domain` of the identities")
	f.StringVar(&c.ProxyImage, "image", c.ProxyImage, "`image` of the proxy and the control plane")
	f.StringVar(&c.InitImage, "init-image", c.InitImage, "`image` of the init container, with iptables")
	f.StringVar(&c.PullPolicy, "image-pull-policy", c.PullPolicy, "pull `policy` of all images")
	f.StringVar(&c.ClusterNetworks, "cluster-networks", c.ClusterNetworks, "`CIDRs` of pods and Services")
	f.StringVar(&c.DefaultPolicy, "default-inbound-policy", c.DefaultPolicy, "inbound `policy` of ports without one")
	f.StringVar(&c.OpaquePorts, "opaque-ports", c.OpaquePorts, "`ports` on which the server may speak first")
	f.StringVar(&c.TapAccount, "tap-account", c.TapAccount,
		"service `account` that may tap, of the control plane, or account.namespace; empty: no tap")
	f.StringVar(&c.DestinationAddr, "destination-addr", c.DestinationAddr,
		"`address` of the destination controller; default: the Service linkerd-dst-headless")
	f.StringVar(&c.PolicyAddr, "policy-addr", c.PolicyAddr,
		"`address` of the policy controller, such as linkerd-policy.linkerd.svc.cluster.local.:8090; default: -destination-addr")
	f.StringVar(&c.IptablesMode, "iptables-mode", c.IptablesMode, "nft, legacy or plain")
	f.BoolVar(&c.IPv6, "ipv6", c.IPv6, "also redirect and accept IPv6; requires nodes with IPv6")
	f.BoolVar(&c.Native, "native-sidecar", c.Native, "native sidecar containers, of Kubernetes 1.29")
}

// Validate returns an error if a required field is empty, or if the proxy or its init
// container would reject a value.
func (c Config) Validate() error {
	for name, value := range map[string]string{
		"namespace": c.Namespace, "cluster domain": c.ClusterDomain, "trust domain": c.TrustDomain,
		"proxy image": c.ProxyImage, "init image": c.InitImage,
	} {
		if value == "" {
			return errors.New("injector: the " + name + " must not be empty")
		}
	}
	if !slices.Contains(pullPolicies(), c.PullPolicy) {
		return fmt.Errorf("injector: the pull policy %q must be %s", c.PullPolicy, strings.Join(pullPolicies(), ", "))
	}
	if _, err := redirect.ParseMode(c.IptablesMode, ""); err != nil {
		return err
	}
	// Injecting a minimal pod runs all checks of the proxy and of the init container.
	_, err := c.Inject(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "a"}}}}, Workload{}, nil)
	return err
}

// pullPolicies returns Kubernetes's pull policies for images.
func pullPolicies() []string { return []string{"Always", "IfNotPresent", "Never"} }

// AnchorsConfigMap is the ConfigMap with the trust anchors, and AnchorsKey their key in it.
const (
	AnchorsConfigMap = "linkerd-identity-trust-roots"
	AnchorsKey       = "ca-bundle.crt"
)

// identity returns the identity of the pods with the given service account.
func (c Config) identity(account, namespace string) string {
	return account + "." + namespace + ".serviceaccount.identity." + c.Namespace + "." + c.TrustDomain
}

// AnchorsSum returns the SHA-256 sum of trust anchors in PEM, in hexadecimal. Each injected pod
// carries the sum in an annotation.
func AnchorsSum(anchors string) string {
	sum := sha256.Sum256([]byte(strings.TrimSpace(anchors)))
	return hex.EncodeToString(sum[:])
}
