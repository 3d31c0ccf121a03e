//go:build !unix || portable

package h1

import "net"

// socket cannot access a connection's received bytes on this system. An idleRead replaces it.
type socket struct{}

func (*socket) init(net.Conn)     {}
func (*socket) exists() bool      { return false }
func (*socket) readable() bool    { return false }
func (*socket) canExchange() bool { return false }

func (*socket) exchange(*writer, *source) error { return nil }
