package httplayer

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
)

// A Server keeps the contract, with connections of one request.
func TestServerConforms(t *testing.T) {
	var network layertest.Network
	client := func(int) net.Conn {
		l, err := network.Listen("tcp", "10.0.0.2:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		near, err := network.DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(near, "GET /length HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		far, err := l.Accept()
		if err != nil {
			panic(err)
		}
		return far
	}
	layertest.Run(t, layertest.ServiceOf[net.Conn, tcplayer.ByteCount]{
		New:     func(context.Context) tcplayer.Server { return NewServer(http.HandlerFunc(shapes)) },
		Request: client,
	})
}
