//go:build !unix

package h1

import "net"

// socket has no access to the received bytes of a connection on this system. Therefore a connection
// that the server has closed is noticed only when the next request on it fails.
type socket struct{}

func (*socket) init(net.Conn)     {}
func (*socket) readable() bool    { return false }
func (*socket) canExchange() bool { return false }

func (*socket) exchange(*writer, *source, bool) error { return nil }
