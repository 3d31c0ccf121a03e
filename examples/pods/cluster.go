package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pod is a network namespace with an address, in which programs run.
type pod struct {
	name    string
	addr    netip.Addr
	account string // service account, which determines the identity of its proxy; "" means no proxy
	opaque  string // ports on which the server of the pod sends first, separated by commas
}

// meshed reports whether there is a proxy in the pod.
func (p pod) meshed() bool { return p.account != "" }

// identity returns the identity of the pod's proxy.
func (p pod) identity() string { return identity(p.account) }

// workload returns the text by which a proxy identifies its pod to the policy controller.
func (p pod) workload() string { return fmt.Sprintf(`{"ns":"default","pod":%q}`, p.name) }

// identity returns the identity that linkerd gives to a service account.
func identity(account string) string {
	return account + ".default.serviceaccount.identity.linkerd.cluster.local"
}

// tapper is the service account of the client that may watch taps.
const tapper = "tapper"

// service is a name with a virtual IP address and a port, for a set of pods. No pod uses this
// address. A proxy asks the controller for the service's pods and connects to one of them. A
// client without a proxy cannot connect.
type service struct {
	name   string
	addr   netip.AddrPort
	pods   []pod
	opaque bool // proxies forward the connections as bytes, without detecting a protocol
	direct bool // proxies connect to inboundPort, and send the port in a transport header
}

func (s service) host() string { return s.name + ".default.svc.cluster.local" }

func (s service) port() string { return strconv.Itoa(int(s.addr.Port())) }

func (s service) String() string { return s.host() + ":" + s.port() }

// The proxy's ports, which are those of linkerd's proxy.
const (
	inboundPort  = 4143
	outboundPort = 4140
	tapPort      = 4190
	adminPort    = 4191
)

// cluster holds all of the program's pods and services.
type cluster struct {
	control, client, web1, web2, data, unmeshedClient pod

	web, api, echo, redis, mail service
	shop, shop1, shop2          service // shop1 and shop2 are backends of shop
}

// newCluster returns the description of all pods and services. It does not start anything.
func newCluster() cluster {
	// Pods and the gateway are in 10.77.0.0/24, and the virtual addresses of services in 10.78.0.0/24.
	address := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, last}) }
	c := cluster{
		control:        pod{name: "control", addr: address(2), account: "control"},
		client:         pod{name: "client", addr: address(10), account: "client"},
		web1:           pod{name: "web-1", addr: address(11), account: "web"},
		web2:           pod{name: "web-2", addr: address(12), account: "web"},
		data:           pod{name: "data", addr: address(13), account: "data", opaque: "2525"},
		unmeshedClient: pod{name: "unmeshedClient", addr: address(20)},
	}
	// virtual returns a service's address with the port. last is the last byte of the IP address.
	virtual := func(last byte, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 78, 0, last}), port)
	}
	both := []pod{c.web1, c.web2}
	c.web = service{name: "web", addr: virtual(1, 80), pods: both}
	c.api = service{name: "api", addr: virtual(2, 8080), pods: both, direct: true}
	c.echo = service{name: "echo", addr: virtual(3, 9090), pods: both}
	c.redis = service{name: "redis", addr: virtual(4, 6379), pods: []pod{c.data}, opaque: true}
	c.mail = service{name: "mail", addr: virtual(5, 2525), pods: []pod{c.data}, opaque: true, direct: true}
	c.shop = service{name: "shop", addr: virtual(6, 80), pods: both}
	c.shop1 = service{name: "shop-1", addr: virtual(7, 80), pods: []pod{c.web1}}
	c.shop2 = service{name: "shop-2", addr: virtual(8, 80), pods: []pod{c.web2}}
	return c
}

// pods returns all pods, whether they have a proxy or not.
func (c cluster) pods() []pod {
	return []pod{c.control, c.client, c.web1, c.web2, c.data, c.unmeshedClient}
}

// meshed returns the pods with a proxy.
func (c cluster) meshed() []pod {
	return slices.DeleteFunc(c.pods(), func(p pod) bool { return !p.meshed() })
}

func (c cluster) services() []service {
	return []service{c.web, c.api, c.echo, c.redis, c.mail, c.shop, c.shop1, c.shop2}
}

// hosts returns the content of /etc/hosts: the services' names and addresses.
func (c cluster) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, s := range c.services() {
		fmt.Fprintf(&b, "%s %s\n", s.addr.Addr(), s.host())
	}
	return b.String()
}

// object is a mapping in YAML.
type object map[string]any

// destinations returns the configuration file of examples/destination. There is an entry for each
// service name with the service's endpoints and profile, one for each service address with the
// same profile, and one for each pod address with a profile that leads to that pod. policy is the
// outbound policy for shop. The file also contains the inbound policies for api and redis.
func (c cluster) destinations(policy object) ([]byte, error) {
	// The keys are addresses or names with ports, for which proxies ask the controller.
	all := object{}
	for _, s := range c.services() {
		endpoints := make([]object, len(s.pods))
		for i, p := range s.pods {
			ep := s.endpoint(p)
			endpoints[i] = ep
			// The profile for the pod's address leads to this pod only.
			profile := object{"endpoint": ep}
			if s.opaque {
				profile["opaque"] = true
			}
			all[ep["addr"].(string)] = object{"profile": profile} //nolint:errcheck,forcetypeassert // endpoint made it
		}
		profile := object{"name": s.host()}
		if s.opaque {
			profile["opaque"] = true
		}
		// A proxy asks for the profile by the service's address, and for the endpoints by the name in it.
		all[s.addr.String()] = object{"profile": profile}
		all[s.String()] = object{"labels": object{"namespace": "default", "service": s.name}, "endpoints": endpoints, "profile": profile}
	}
	all[c.shop.String()].(object)["policy"] = policy //nolint:errcheck,forcetypeassert // it is a service
	return yaml.Marshal(object{"destinations": all, "servers": append(c.api.servers(), c.redis.servers()...)})
}

// servers returns the inbound policies of the service's pods, in the configuration file's format.
// They permit only clients with a service account named "client".
func (s service) servers() []object {
	servers := make([]object, 0, len(s.pods))
	for _, p := range s.pods {
		servers = append(servers, object{
			"name": s.serverName(p), "workload": p.workload(), "port": s.addr.Port(),
			"authorizationPolicies": []object{{
				"name": "client", "serviceAccounts": []object{{"namespace": "default", "name": "client"}},
			}},
		})
	}
	return servers
}

// serverName names the inbound policy for the service in the pod p.
func (s service) serverName(p pod) string { return s.name + "-" + p.name }

// endpoint returns the pod p as an endpoint in the configuration file's format.
func (s service) endpoint(p pod) object {
	ep := object{
		"addr":     netip.AddrPortFrom(p.addr, s.addr.Port()).String(),
		"labels":   object{"pod": p.name},
		"identity": p.identity(),
		// Proxies send HTTP/2 to each other, whatever the client uses.
		"protocol": "h2",
	}
	// Proxies forward the bytes of an opaque service as they are.
	if s.opaque {
		ep["protocol"] = "opaque"
	}
	if s.direct {
		ep["opaque_port"] = inboundPort
	}
	return ep
}
