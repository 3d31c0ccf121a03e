//go:build !linux

package tcplayer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
)

// redirectedFrom says that it cannot.
func redirectedFrom(net.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, fmt.Errorf("original destination on %s: %w (take it from a fixed address or the PROXY protocol)",
		runtime.GOOS, errors.ErrUnsupported)
}
