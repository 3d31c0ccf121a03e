package config

import (
	"net/netip"
	"strings"
)

// KubernetesRoutes says which Gateways and Ingresses in a cluster the gateway serves.
type KubernetesRoutes struct {
	// How this gateway's controller is called. The gateway serves GatewayClasses and
	// IngressClasses with this controller name.
	ControllerName string `yaml:"controllerName" default:"github.com/gotower/gateway"`
	// A file with the API server's address and credentials. The default is the pod's service
	// account.
	Kubeconfig *File `yaml:"kubeconfig"`
	// IP addresses or host names at which clients reach the gateway. The gateway writes them to
	// the status of Ingresses, and of Gateways that do not specify an address.
	Addresses []Text `yaml:"addresses"`
	// Address for Ingresses over cleartext HTTP.
	IngressHTTP Address `yaml:"ingressHTTP" default:":80"`
	// Address for Ingresses with a certificate over HTTPS. They are also served at ingressHTTP.
	IngressHTTPS Address `yaml:"ingressHTTPS" default:":443"`
}

// check reports a name that Kubernetes would reject, and addresses that contradict each other.
func (k *KubernetesRoutes) check(n node) {
	// Kubernetes requires this form for the names of controllers.
	if domain, path, ok := strings.Cut(k.ControllerName, "/"); !ok || !isDomain(domain) || path == "" {
		n.at("controllerName").failf("want a domain and a path, such as example.com/gateway")
	}
	for i, a := range k.Addresses {
		if _, err := netip.ParseAddr(string(a)); err != nil && !isDomain(string(a)) {
			n.at("addresses").item(i).failf("want an IP address or a host name")
		}
	}
	if k.IngressHTTP == k.IngressHTTPS {
		n.at("ingressHTTPS").failf("want another address than ingressHTTP")
	}
}

// AddressError says that the gateway cannot listen at an address.
type AddressError struct {
	Address string
	Err     error
}

// Error returns the reason without the address, which callers usually mention anyway.
func (e *AddressError) Error() string { return e.Err.Error() }

// Unwrap returns e.Err.
func (e *AddressError) Unwrap() error { return e.Err }
