package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer/tcplayer"
)

// ownPorts contains the addresses on which the proxy itself listens. The paths must not connect to
// them, because that would be a loop. [New] sets them before connections are served.
type ownPorts struct {
	ports []uint16
	ips   []netip.Addr // this pod's addresses, in addition to loopback
	all   bool         // all addresses count as this pod's
}

// refuse returns an error if the proxy itself listens on addr.
func (o *ownPorts) refuse(addr netip.AddrPort) error {
	if !slices.Contains(o.ports, addr.Port()) || !o.isLocal(addr.Addr().Unmap()) {
		return nil
	}
	return fmt.Errorf("%v is this proxy itself: %w", addr, tcplayer.ErrLoop)
}

// isLocal reports whether ip is this pod's address. Unspecified addresses count too, because
// systems connect them to loopback.
func (o *ownPorts) isLocal(ip netip.Addr) bool {
	return o.all || ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(o.ips, ip)
}

// setOwnPorts sets the addresses to which the outbound path (outward) and the inbound path (inward)
// must not connect. Both contain all ports on which the proxy listens.
//
// In outward, the ports are only forbidden at the pod's own addresses: INBOUND_IPS and the
// listeners' addresses, or local, the addresses of the network interfaces, for a listener on all of
// them. In inward, they are forbidden everywhere. Otherwise a remote client could reach the admin
// and tap servers through the proxy, and they would take it for a client on this machine.
func (p *Proxy) setOwnPorts(outward, inward *ownPorts, local []netip.Addr) {
	var listeners []netip.AddrPort
	for _, path := range p.paths {
		// Fallback may have changed the configured ports, so use those that are really bound.
		listeners = append(listeners, path.addr)
	}
	for _, operator := range []string{p.Admin, p.Tap} {
		// A server that is off has the address "".
		if addr, err := netip.ParseAddrPort(operator); err == nil {
			listeners = append(listeners, addr)
		}
	}
	outward.ips = slices.Clone(p.config.Settings.Inbound.IPs)
	inward.all = true
	for _, addr := range listeners {
		outward.ports = append(outward.ports, addr.Port())
		// A listener on all addresses is reachable at each local one.
		if addr.Addr().IsUnspecified() {
			outward.ips = append(outward.ips, local...)
		} else {
			outward.ips = append(outward.ips, addr.Addr())
		}
	}
	inward.ports = outward.ports
}

// localAddrs returns the network interfaces' addresses.
func localAddrs() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	local := make([]netip.Addr, 0, len(addrs))
	// Skip addresses that are no IP networks.
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
			local = append(local, prefix.Addr().Unmap())
		}
	}
	return local, err
}
