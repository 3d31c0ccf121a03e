//go:build !unix

package h1

import "net"

// socket cannot look at what a connection has received on this system. The next
// request finds out that the server has closed the connection.
type socket struct{}

func (*socket) init(net.Conn)     {}
func (*socket) readable() bool    { return false }
func (*socket) canExchange() bool { return false }

func (*socket) exchange(_, _ []byte, _ bool) (written, n int, err error) { return 0, 0, nil }
