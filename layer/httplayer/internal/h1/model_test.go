package h1

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/internal/exchangetest"
	"github.com/gotower/gotower/layer/httplayer/internal/enginetest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// modelConn is a client connection to a server of the same engine.
type modelConn struct {
	*ClientConn
	enginetest.Pipe
	server      *ServerConn
	idle, ended atomic.Bool
	busy        atomic.Bool
	cancel      context.CancelFunc // ends the server
	served      chan struct{}
}

func connectModel(exchange func(*http.Request) (*http.Response, error)) exchangetest.Conn {
	p := enginetest.NewPipe()
	ctx, cancel := context.WithCancel(context.Background())
	cfg := &message.ServerConfig{Exchange: exchange, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler)}
	c := &modelConn{Pipe: p, server: NewServerConn(ctx, p.Server, cfg), cancel: cancel, served: make(chan struct{})}
	c.ClientConn = NewClientConn(p.Client, func(_ *ClientConn, reusable bool) {
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
		Connect: connectModel, Serial: true, Pause: finishTimeout + 1, NotSent: message.ErrNotSent, Pools: message.Pools,
		Reset: code, Cancel: code, Code: func(error) uint32 { return 0 },
	})
}
