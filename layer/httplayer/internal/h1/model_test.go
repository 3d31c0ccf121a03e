package h1

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/internal/exchangetest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/layertest"
)

// modelConn is a client connection to a server of the same engine.
type modelConn struct {
	*ClientConn
	server      *ServerConn
	near, far   net.Conn
	idle, ended atomic.Bool
	busy        atomic.Bool
	cancel      context.CancelFunc // ends the server
	served      chan struct{}
}

func connectModel(exchange func(*http.Request) (*http.Response, error)) exchangetest.Conn {
	var network layertest.Network
	l, err := network.Listen("tcp", "10.0.0.1:80")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	near, err := network.DialContext(context.Background(), "tcp", "10.0.0.1:80")
	if err != nil {
		panic(err)
	}
	far, err := l.Accept()
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cfg := &message.ServerConfig{Exchange: exchange, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler)}
	c := &modelConn{near: near, far: far, server: NewServerConn(ctx, far, cfg), cancel: cancel, served: make(chan struct{})}
	c.ClientConn = NewClientConn(near, func(_ *ClientConn, reusable bool) {
		if !c.busy.Swap(false) {
			panic("a connection was released twice")
		}
		c.idle.Store(reusable)
		c.ended.Store(!reusable)
	})
	c.Rest()
	c.idle.Store(true)
	go func() {
		defer close(c.served)
		_ = c.server.Serve()
	}()
	return c
}

func (c *modelConn) Acquire() bool {
	if !c.idle.Swap(false) {
		return false
	}
	c.busy.Store(true)
	return true
}

func (c *modelConn) Ended() bool { return c.ended.Load() }

func (c *modelConn) Drain(server bool) {
	if server {
		c.server.CloseIdle()
	}
}

func (c *modelConn) Break(server bool) {
	if server {
		_ = c.far.Close()
	} else {
		_ = c.near.Close()
	}
}

func (c *modelConn) Close() {
	_ = c.ClientConn.Close()
	c.cancel()
	<-c.served
}

func (*modelConn) Resets() int { return 0 }

func (c *modelConn) Open() string {
	switch {
	case c.busy.Load() || c.ClientConn.busy.Load() || c.sender != nil:
		return "the client is busy"
	case c.server.current.Load() != nil:
		return "the server is busy"
	case c.buf != nil || c.out.buf != nil || c.server.out.buf != nil:
		return "a buffer is in use"
	}
	return ""
}

func TestExchangeModel(t *testing.T) {
	code := func(uint32) error { return context.Canceled }
	exchangetest.Run(t, &exchangetest.Engine{
		Connect: connectModel, Serial: true, Pause: finishTimeout + 1, NotSent: message.ErrNotSent, Pools: []*sync.Pool{&smallBuffers, &bigBuffers},
		Reset: code, Cancel: code, Code: func(error) uint32 { return 0 },
	})
}
