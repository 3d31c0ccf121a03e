//go:build !linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// listen listens on addr, on systems other than Linux. It ignores the backlog, and
// returns an error if reuse is true.
func listen(addr netip.AddrPort, _ int, reuse bool) (net.Listener, error) {
	if reuse {
		return nil, fmt.Errorf("listen on %v together with another process: %w", addr, errors.ErrUnsupported)
	}
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp", addr.String())
}

// waiting always returns false, because only Linux has an implementation that finds
// waiting connections.
func waiting(net.Listener) bool { return false }
