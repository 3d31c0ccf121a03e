//go:build !linux

package tcplayer

import "net"

// awaitFirst says that it cannot: where the kernel does not copy between
// sockets, a Read does as well.
func awaitFirst(net.Conn) (ok, more bool, err error) { return false, false, nil }
