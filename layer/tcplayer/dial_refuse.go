package tcplayer

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// DenyLoopback is what a [Dialer] is to refuse that must not come back to its own
// machine, as one for the clients of a pod: addresses of the loopback, and those
// that are none, which the system takes for it. The error matches
// ECONNREFUSED, as if nobody were there.
func DenyLoopback(addr netip.AddrPort) error {
	if ip := addr.Addr().Unmap(); !ip.IsValid() || ip.IsLoopback() || ip.IsUnspecified() {
		return fmt.Errorf("no connections to the loopback from here: %w", syscall.ECONNREFUSED)
	}
	return nil
}

// DenyPorts is what a [Dialer] is to refuse that must not connect to a port of its
// own proxy, which would send the connection round for ever. The error matches
// [ErrLoop].
func DenyPorts(ports ...uint16) func(addr netip.AddrPort) error {
	return func(addr netip.AddrPort) error {
		if slices.Contains(ports, addr.Port()) {
			return fmt.Errorf("port %d is the proxy's own: %w", addr.Port(), ErrLoop)
		}
		return nil
	}
}
