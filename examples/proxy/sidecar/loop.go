package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer/tcplayer"
)

// ownPorts has the addresses on which the proxy itself listens. Neither the outbound nor
// the inbound path connects to them, because such a connection would loop. [New] sets
// them before connections are served.
type ownPorts struct {
	ports []uint16
	ips   []netip.Addr // addresses of this pod, in addition to loopback
	all   bool         // all addresses count as addresses of this pod
}

// refuse returns an error if addr is an address on which the proxy itself listens.
func (o *ownPorts) refuse(addr netip.AddrPort) error {
	if !slices.Contains(o.ports, addr.Port()) || !o.at(addr.Addr().Unmap()) {
		return nil
	}
	return fmt.Errorf("%v is this proxy itself: %w", addr, tcplayer.ErrLoop)
}

// at reports whether ip is an address of this pod. Unspecified addresses also count, because
// systems connect them to loopback.
func (o *ownPorts) at(ip netip.Addr) bool {
	return o.all || ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(o.ips, ip)
}

// setOwnPorts sets the addresses to which a path must not connect, in outward for the
// outbound path and in inward for the inbound path. Both contain all ports of the proxy.
//
// In outward, the ports are forbidden only at the addresses of this pod: INBOUND_IPS, and those
// of the listeners. The argument local has the addresses of a listener without an address of
// its own, which are those of the network interfaces. In inward, the ports are forbidden at all
// addresses, because a remote client could otherwise reach the admin and tap servers through
// the proxy. Those servers would then treat it as a client on this machine.
func (p *Proxy) setOwnPorts(outward, inward *ownPorts, local []netip.Addr) {
	var listeners []netip.AddrPort
	for _, path := range p.paths {
		listeners = append(listeners, path.at)
	}
	for _, operator := range []string{p.Admin, p.Tap} {
		if at, err := netip.ParseAddrPort(operator); err == nil {
			listeners = append(listeners, at)
		}
	}
	outward.ips, inward.all = slices.Clone(p.config.Settings.Inbound.IPs), true
	for _, at := range listeners {
		outward.ports = append(outward.ports, at.Port())
		if at.Addr().IsUnspecified() {
			outward.ips = append(outward.ips, local...)
		} else {
			outward.ips = append(outward.ips, at.Addr())
		}
	}
	inward.ports = outward.ports
}

// localAddrs returns the addresses of the network interfaces.
func localAddrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	local := make([]netip.Addr, 0, len(addrs))
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
			local = append(local, prefix.Addr().Unmap())
		}
	}
	return local, err
}
