package sidecar

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer/tcplayer"
)

// ownPorts are the addresses of the proxy itself, to which a path must not connect. New
// sets them before the paths serve connections.
type ownPorts struct {
	ports []uint16
	ips   []netip.Addr // of this pod, in addition to loopback; nil: all addresses
}

// refuse returns an error for an address of the proxy itself.
func (o *ownPorts) refuse(addr netip.AddrPort) error {
	if !slices.Contains(o.ports, addr.Port()) || !o.at(addr.Addr().Unmap()) {
		return nil
	}
	return fmt.Errorf("%v is this proxy itself: %w", addr, tcplayer.ErrLoop)
}

// at reports whether ip is an address of this pod. That includes the unspecified
// addresses, because systems connect them to loopback.
func (o *ownPorts) at(ip netip.Addr) bool {
	return o.ips == nil || ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(o.ips, ip)
}

// setOwnPorts sets the addresses that the paths must not connect to. The outbound path
// must not connect to the proxy's ports at the addresses of this pod. The inbound path
// must not connect to them at any address, because admin and tap would treat such a client
// as one of this machine.
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
