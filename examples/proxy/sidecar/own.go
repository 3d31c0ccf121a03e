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

// know tells both paths what is the proxy's own. What goes out keeps off the
// listeners that it came in by: elsewhere their ports are those of others. What
// comes in keeps off every port of the proxy, where a client would be taken for
// one of this machine, who may watch and end the proxy.
func (p *Proxy) know(outward, inward *own) {
	inward.ports, outward.ips = make([]uint16, 0, len(p.paths)+2), slices.Clone(p.config.Settings.Inbound.IPs)
	for _, path := range p.paths {
		inward.ports = append(inward.ports, path.at.Port())
		if path.name == outboundPath {
			outward.ports = append(outward.ports, path.at.Port())
			outward.ips = append(outward.ips, path.at.Addr())
		}
	}
	for _, operator := range []string{p.Admin, p.Tap} {
		if at, err := netip.ParseAddrPort(operator); err == nil {
			inward.ports = append(inward.ports, at.Port())
		}
	}
}
