package sidecar

import (
	"net/netip"

	"github.com/gotower/gotower/layer/tcplayer"
)

// refuseInbound keeps clients from the proxy itself: nothing is sent to a port
// that it listens to, where it would come round again, or be taken for a request
// of this machine, which may watch and end the proxy.
func (p *Proxy) refuseInbound(addr netip.AddrPort) error {
	return tcplayer.NotPorts(p.ports()...)(addr)
}

// ports are those that the proxy listens to. They are known once New is over.
func (p *Proxy) ports() []uint16 {
	own := make([]uint16, 0, len(p.paths)+2)
	for _, path := range p.paths {
		own = append(own, path.at.Port())
	}
	for _, operator := range []string{p.Admin, p.Tap} {
		if at, err := netip.ParseAddrPort(operator); err == nil {
			own = append(own, at.Port())
		}
	}
	return own
}
