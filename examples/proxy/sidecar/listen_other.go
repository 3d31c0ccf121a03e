//go:build !linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// listen listens on addr. It ignores the backlog, and cannot reuse an address.
func listen(addr netip.AddrPort, _ int, reuse bool) (net.Listener, error) {
	if reuse {
		return nil, fmt.Errorf("listen on %v together with another process: %w", addr, errors.ErrUnsupported)
	}
	// MPTCP is off, as on Linux.
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp", addr.String())
}

// waiting always returns false, because only Linux has an implementation.
func waiting(net.Listener) bool { return false }
