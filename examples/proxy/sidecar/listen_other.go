//go:build !linux

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// listen listens on addr. It is for systems other than Linux, where it ignores the backlog
// and returns an error for reuse.
func listen(addr netip.AddrPort, _ int, reuse bool) (net.Listener, error) {
	if reuse {
		return nil, fmt.Errorf("listen on %v together with another process: %w", addr, errors.ErrUnsupported)
	}
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp", addr.String())
}

// waiting returns false, because it is implemented only on Linux.
func waiting(net.Listener) bool { return false }
