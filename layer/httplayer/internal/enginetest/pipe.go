package enginetest

import (
	"context"
	"net"

	"github.com/gotower/gotower/layer/layertest"
)

// Pipe holds both ends of a connection in memory.
type Pipe struct{ Client, Server net.Conn }

// NewPipe returns a new connection.
func NewPipe() (p Pipe) {
	// Any address will do: each pipe has a network of its own.
	const addr = "10.0.0.1:80"
	var network layertest.Network
	l, err := network.Listen("tcp", addr)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	if p.Client, err = network.DialContext(context.Background(), "tcp", addr); err != nil {
		panic(err)
	}
	if p.Server, err = l.Accept(); err != nil {
		panic(err)
	}
	return p
}

// Break closes the server's end if server is true, and otherwise the client's.
func (p Pipe) Break(server bool) {
	if server {
		_ = p.Server.Close()
	} else {
		_ = p.Client.Close()
	}
}
