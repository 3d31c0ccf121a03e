package sidecar

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer/tcplayer"
)

// ownPorts has the addresses on which the proxy itself listens. Neither the outbound nor
// the inbound path connects to them, because such a connection would loop. [New] sets
// them before connections are served.
type ownPorts struct {
	ports []uint16
	ips   []netip.Addr // addresses of this pod, in addition to loopback; nil means all addresses
}

// refuse returns an error if addr is an address on which the proxy itself listens.
func (o *ownPorts) refuse(addr netip.AddrPort) error {
	if !slices.Contains(o.ports, addr.Port()) || !o.at(addr.Addr().Unmap()) {
		return nil
	}
	return fmt.Errorf("%v is this proxy itself: %w", addr, tcplayer.ErrLoop)
}

// at reports whether ip is an address of this pod. All addresses count as such if o.ips is
// nil. Unspecified addresses also count, because systems connect them to loopback.
func (o *ownPorts) at(ip netip.Addr) bool {
	return o.ips == nil || ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(o.ips, ip)
}

// setOwnPorts sets the addresses to which a path must not connect, in outward for the
// outbound path and in inward for the inbound path. Both contain all ports of the proxy.
//
// In outward, the ports are forbidden only at the addresses of this pod. In inward, they
// are forbidden at all addresses, because a remote client could otherwise reach the admin
// and tap servers through the proxy. Those servers would then treat it as a client on this
// machine.
func (p *Proxy) setOwnPorts(outward, inward *ownPorts) {
	ports := make([]uint16, 0, len(p.paths)+2)
	outward.ips = slices.Clone(p.config.Settings.Inbound.IPs)
	for _, path := range p.paths {
		ports = append(ports, path.at.Port())
		if path.name == outboundPath {
			outward.ips = append(outward.ips, path.at.Addr())
		}
	}
	for _, operator := range []string{p.Admin, p.Tap} {
		if at, err := netip.ParseAddrPort(operator); err == nil {
			ports = append(ports, at.Port())
		}
	}
	outward.ports, inward.ports = ports, ports
}
