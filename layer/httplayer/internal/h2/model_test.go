package h2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/gotower/gotower/internal/exchangetest"
	"github.com/gotower/gotower/layer/httplayer/internal/enginetest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// modelConn is a client connection to a server of the same engine.
type modelConn struct {
	*ClientConn
	enginetest.Pipe
	server *ServerConn
	cancel context.CancelFunc // ends the server
	served chan struct{}
}

// connectModel returns a connection with small windows. Two streams can exhaust that of the connection.
func connectModel(exchange func(*http.Request) (*http.Response, error)) exchangetest.Conn {
	p := enginetest.NewPipe()
	ctx, cancel := context.WithCancel(context.Background())
	const window = 48 << 10
	cfg := &message.ServerConfig{
		Exchange: exchange, Sweeper: new(sweep.Sweeper), Log: slog.New(slog.DiscardHandler),
		MaxStreams: 4, StreamWindow: window, ConnWindow: 1, DrainTimeout: 5 * time.Second,
	}
	c := &modelConn{Pipe: p, server: NewServerConn(ctx, p.Server, cfg), cancel: cancel, served: make(chan struct{})}
	go func() {
		defer close(c.served)
		_ = c.server.Serve()
	}()
	c.ClientConn = NewClientConn(p.Client, &ClientConfig{StreamWindow: window, ConnWindow: 1})
	return c
}

func (c *modelConn) Acquire() bool { return c.Reserve() }

func (c *modelConn) Ended() bool { return !c.Usable() }

func (c *modelConn) Drain(server bool) {
	if server {
		c.server.Drain()
	} else {
		c.ClientConn.Drain()
	}
}

func (c *modelConn) Close() {
	_ = c.ClientConn.Close()
	<-c.Done()
	c.cancel()
	<-c.served
}

func (c *modelConn) Resets() (n int) {
	for _, c := range []*conn{&c.ClientConn.conn, &c.server.conn} {
		c.mu.Lock()
		n += c.resetCount
		c.mu.Unlock()
	}
	return n
}

// Open also compares the windows of the connection at both ends.
func (c *modelConn) Open() string {
	client, server := &c.ClientConn.conn, &c.server.conn
	for name, ends := range map[string][2]*conn{"client": {client, server}, "server": {server, client}} {
		c, peer := ends[0], ends[1]
		c.mu.Lock()
		window := c.sendWindow
		use := fmt.Sprint(len(c.streams), c.pending, c.queuedBytes(), c.grown.Load())
		c.mu.Unlock()
		switch {
		case use != "0 0 0 0":
			return name + " has streams, handlers or slots, output or grown windows: " + use
		case window+peer.received != peer.connWindow:
			return fmt.Sprintf("%s may send %d bytes, and the other end has received %d of %d",
				name, window, peer.received, peer.connWindow)
		}
	}
	return ""
}

func TestExchangeModel(t *testing.T) {
	exchangetest.Run(t, &exchangetest.Engine{
		Connect: connectModel, NotSent: message.ErrNotSent,
		Pools:  message.Pools,
		Reset:  func(code uint32) error { return &message.ResetError{Code: code} },
		Cancel: func(code uint32) error { return &message.CanceledError{Code: code} },
		Code: func(err error) uint32 {
			if reset, ok := errors.AsType[*message.ResetError](err); ok {
				return reset.Code
			}
			if canceled, ok := errors.AsType[*message.CanceledError](err); ok {
				return canceled.Code
			}
			return 0
		},
	})
}
