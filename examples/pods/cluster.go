package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pod is a network namespace with an address.
type pod struct {
	name    string
	addr    netip.Addr
	account string // service account, for the proxy's identity; "": no proxy
	opaque  string // ports on which the server speaks first
}

func (p pod) meshed() bool { return p.account != "" }

func (p pod) identity() string { return identity(p.account) }

// identity returns linkerd's identity of the service account.
func identity(account string) string {
	return account + ".default.serviceaccount.identity.linkerd.cluster.local"
}

// tapper is the service account of the tap client.
const tapper = "tapper"

// service is a name and an address that no pod has. Only a proxy that uses the controller
// can connect to it.
type service struct {
	name   string
	addr   netip.AddrPort
	pods   []pod
	opaque bool
	direct bool // by the inbound proxy's port, with the service's port in the transport header
}

func (s service) host() string { return s.name + ".default.svc.cluster.local" }

func (s service) port() string { return strconv.Itoa(int(s.addr.Port())) }

func (s service) String() string { return s.host() + ":" + s.port() }

// The ports of the proxy, which are linkerd's.
const (
	inboundPort  = 4143
	outboundPort = 4140
	tapPort      = 4190
	adminPort    = 4191
)

// cluster has all pods and services.
type cluster struct {
	control, client, web1, web2, data, unmeshedClient pod

	web, api, echo, redis, mail service
}

func newCluster() cluster {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, last}) }
	c := cluster{
		control:        pod{name: "control", addr: at(2), account: "control"},
		client:         pod{name: "client", addr: at(10), account: "client"},
		web1:           pod{name: "web-1", addr: at(11), account: "web"},
		web2:           pod{name: "web-2", addr: at(12), account: "web"},
		data:           pod{name: "data", addr: at(13), account: "data", opaque: "2525"},
		unmeshedClient: pod{name: "unmeshedClient", addr: at(20)},
	}
	virtual := func(last byte, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 78, 0, last}), port)
	}
	both := []pod{c.web1, c.web2}
	c.web = service{name: "web", addr: virtual(1, 80), pods: both}
	c.api = service{name: "api", addr: virtual(2, 8080), pods: both}
	c.echo = service{name: "echo", addr: virtual(3, 9090), pods: both}
	c.redis = service{name: "redis", addr: virtual(4, 6379), pods: []pod{c.data}, opaque: true}
	c.mail = service{name: "mail", addr: virtual(5, 2525), pods: []pod{c.data}, opaque: true, direct: true}
	return c
}

func (c cluster) pods() []pod {
	return []pod{c.control, c.client, c.web1, c.web2, c.data, c.unmeshedClient}
}

func (c cluster) meshed() []pod {
	return slices.DeleteFunc(c.pods(), func(p pod) bool { return !p.meshed() })
}

func (c cluster) services() []service { return []service{c.web, c.api, c.echo, c.redis, c.mail} }

// hosts returns /etc/hosts with the names of the services.
func (c cluster) hosts() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, s := range c.services() {
		fmt.Fprintf(&b, "%s %s\n", s.addr.Addr(), s.host())
	}
	return b.String()
}

type object map[string]any

// destinations returns the file of examples/destination. The name of a service has
// endpoints. The address of a service has a profile with the name. The address of a pod
// has a profile with the endpoint.
func (c cluster) destinations() ([]byte, error) {
	all := object{}
	for _, s := range c.services() {
		endpoints := make([]object, len(s.pods))
		for i, p := range s.pods {
			ep := s.endpoint(p)
			endpoints[i] = ep
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
		all[s.addr.String()] = object{"profile": profile}
		all[s.String()] = object{"labels": object{"namespace": "default", "service": s.name}, "endpoints": endpoints, "profile": profile}
	}
	return yaml.Marshal(object{"destinations": all})
}

func (s service) endpoint(p pod) object {
	ep := object{
		"addr":     netip.AddrPortFrom(p.addr, s.addr.Port()).String(),
		"labels":   object{"pod": p.name},
		"identity": p.identity(),
		"protocol": "h2",
	}
	if s.opaque {
		ep["protocol"] = "opaque"
	}
	if s.direct {
		ep["opaque_port"] = inboundPort
	}
	return ep
}
