package config

import (
	"net/netip"
	"strings"
)

// KubernetesRoutes specifies which Gateways and Ingresses of a cluster the gateway serves.
type KubernetesRoutes struct {
	// The controller name of this gateway. The gateway serves the GatewayClasses and
	// IngressClasses that have this name.
	ControllerName string `yaml:"controllerName" default:"github.com/gotower/gateway"`
	// The file with the address and the credentials of the API server. The default is the
	// service account of the pod.
	Kubeconfig *File `yaml:"kubeconfig"`
	// The IP addresses or host names at which clients reach the gateway. The gateway writes
	// them to the status of Ingresses, and of Gateways that specify no address.
	Addresses []Text `yaml:"addresses"`
	// The address at which the gateway serves Ingresses by cleartext HTTP.
	IngressHTTP Address `yaml:"ingressHTTP" default:":80"`
	// The address at which the gateway serves Ingresses with a certificate by HTTPS. It
	// also serves them at ingressHTTP.
	IngressHTTPS Address `yaml:"ingressHTTPS" default:":443"`
}

func (k *KubernetesRoutes) check(n node) {
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

// AddressError reports that the gateway cannot listen at an address.
type AddressError struct {
	Address string
	Err     error
}

// Error returns the text of e.Err, without the address.
func (e *AddressError) Error() string { return e.Err.Error() }

// Unwrap returns e.Err.
func (e *AddressError) Unwrap() error { return e.Err }
