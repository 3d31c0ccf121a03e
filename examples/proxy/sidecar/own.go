package sidecar

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer/tcplayer"
)

// own is what of the proxy itself one of its paths must not connect to. New
// fills it in when everything listens, and nobody connects before that.
type own struct {
	ports []uint16
	ips   []netip.Addr // of this pod, besides those of loopback; nil: whatever the address
}

// refuse keeps what a path sends from coming round again.
func (o *own) refuse(addr netip.AddrPort) error {
	if !slices.Contains(o.ports, addr.Port()) || !o.at(addr.Addr().Unmap()) {
		return nil
	}
	return fmt.Errorf("%v is this proxy itself: %w", addr, tcplayer.ErrLoop)
}

// at includes the unspecified addresses, which a system takes for itself.
func (o *own) at(ip netip.Addr) bool {
	return o.ips == nil || ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(o.ips, ip)
}

// know tells both paths what is the proxy's own. What goes out keeps off all its
// ports at the addresses of this pod: elsewhere they are those of others. What
// comes in keeps off them whatever the address. At those of admin and tap, whom
// this proxy connects would be taken for one of this machine, who may watch and
// end it.
func (p *Proxy) know(outward, inward *own) {
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
