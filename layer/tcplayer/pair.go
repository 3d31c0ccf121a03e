package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// pair is two connections that are joined.
type pair struct {
	client, server net.Conn
	idle           time.Duration

	start time.Time    // with a limit on idle time
	moved atomic.Int64 // since start, when a byte last moved

	mu   sync.Mutex // of what follows, and of setting the timer
	over bool
	err  *layer.Error
}

// join copies until both directions ended, and leaves both sides closed.
func (p *pair) join(ctx context.Context) (ByteCount, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { p.fail(layer.Error{Reason: "broken off", Err: context.Cause(ctx)}) })
	})
	defer stop()
	if p.idle > 0 {
		p.start = time.Now()
		timer := p.watch()
		defer timer.Stop()
	}
	sent := make(chan int64, 1)
	go func() { sent <- p.pump(p.server, p.client, "client to server") }()
	t := ByteCount{Received: p.pump(p.client, p.server, "server to client")}
	t.Sent = <-sent
	p.finish()
	if p.err != nil {
		return t, p.err
	}
	return t, nil
}

// pump copies one direction, and passes its end on. A panic of a connection is an
// error of its direction.
func (p *pair) pump(dst, src net.Conn, direction string) (n int64) {
	var panicked error
	defer func() {
		if panicked != nil {
			p.fail(layer.Error{Reason: direction, Err: panicked})
		}
	}()
	defer panics.Recover(&panicked)
	n, err := p.copy(dst, src)
	if err == nil {
		err = endOf(src)
	}
	if err != nil {
		p.fail(layer.Error{Reason: direction, Err: err})
		return n
	}
	// Any other error is of a dst that is gone already: the other direction
	// hears of it.
	if errors.Is(closeWrite(dst), errors.ErrUnsupported) {
		p.finish()
	}
	return n
}

func (p *pair) copy(dst, src net.Conn) (int64, error) {
	if p.idle == 0 {
		return io.Copy(dst, src)
	}
	return io.Copy(marked{p, dst}, marked{p, src})
}

// marked notes when bytes move. It hides what a connection has beyond Read and
// Write, by which they would move unseen.
type marked struct {
	pair *pair
	conn net.Conn
}

func (m marked) Read(b []byte) (int, error) {
	n, err := m.conn.Read(b)
	m.pair.moved.Store(int64(time.Since(m.pair.start)))
	return n, err
}

func (m marked) Write(b []byte) (int, error) {
	n, err := m.conn.Write(b)
	m.pair.moved.Store(int64(time.Since(m.pair.start)))
	return n, err
}

// watch ends the pair once nothing has moved for as long as is allowed.
func (p *pair) watch() *time.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(p.idle, func() {
		left := p.idle - (time.Since(p.start) - time.Duration(p.moved.Load()))
		if left <= 0 {
			_ = panics.Contain(func() {
				p.fail(layer.Error{Kind: layer.ErrIdleTimeout, Reason: fmt.Sprintf("nothing for %v", p.idle)})
			})
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.over {
			timer.Reset(left)
		}
	})
	return timer
}

// fail ends both directions for the first thing that went wrong.
func (p *pair) fail(err layer.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	err.Layer = "forward"
	if addr := p.server.RemoteAddr(); addr != nil {
		err.Endpoint = addr.String()
	}
	p.err = &err
	defer reset(p.server) // even if the other one panics
	reset(p.client)
}

// finish closes both sides in good order, unless they were reset.
func (p *pair) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	defer p.server.Close()
	_ = p.client.Close()
}
