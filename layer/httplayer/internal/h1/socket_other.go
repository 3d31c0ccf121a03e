//go:build !unix

package h1

import "net"

// socket has no access to the received bytes of a connection on this system. If the server
// has closed a connection, only the next request on it shows this.
type socket struct{}

func (*socket) init(net.Conn)     {}
func (*socket) readable() bool    { return false }
func (*socket) canExchange() bool { return false }

func (*socket) exchange(*writer, *source, bool) error { return nil }
