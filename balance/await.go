package balance

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// Endpoints that are not ready wait for their turn. In its turn the balancer waits
// in the endpoint's Ready, which may connect. So the attempts to connect, and the
// goroutines, are few however many endpoints there are.
const (
	// places is how many endpoints have their turn at the same time.
	places = 16

	// turn is the time after which an endpoint yields its place, if another one
	// waits for it.
	turn = time.Second
)

// setAside makes a node that is not in the ready set wait for its turn, unless it
// is closed.
func (b *Balancer[Req, Rsp]) setAside(n *node[Req, Rsp], reason error) {
	n.reason, b.refuser, n.away = reason, n, b.now()
	defer b.count()
	if errors.Is(reason, layer.ErrClosed) {
		n.status.setState(closed)
		return
	}
	n.status.setState(unready)
	if n.waits {
		return // it became ready, and refused, before its turn was over
	}
	n.waits = true
	b.waiting = append(b.waiting, n)
	if b.places < places {
		b.places++
		go b.attend()
	}
}

// attend gives turns until no endpoint waits for one.
func (b *Balancer[Req, Rsp]) attend() {
	for {
		ctx, n := b.next()
		if n == nil {
			return
		}
		b.await(ctx, n)
	}
}

// next begins the turn of the next endpoint.
func (b *Balancer[Req, Rsp]) next() (context.Context, *node[Req, Rsp]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.waiting) > 0 && b.ctx.Err() == nil {
		n := b.waiting[0]
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
		if n.status.state() == unready {
			var ctx context.Context
			ctx, n.stop = context.WithCancel(b.ctx)
			return ctx, n
		}
		n.waits = false
	}
	b.places--
	return nil, nil
}

// await is the turn of n. It ends when n is ready, closed or removed, or yields.
func (b *Balancer[Req, Rsp]) await(ctx context.Context, n *node[Req, Rsp]) {
	yields := b.yieldLater(ctx, n)
	err := n.ready(ctx)
	for failures := 0; err != nil && !errors.Is(err, layer.ErrClosed); failures++ {
		// Either ctx is done, or Ready broke its contract.
		if backoff.Sleep(ctx, pause.Delay(failures)) != nil {
			break
		}
		err = n.ready(ctx)
	}
	b.mu.Lock()
	yields.Stop()
	n.endTurn()
	switch {
	case n.status.state() != unready:
		n.waits = false
	case err == nil || errors.Is(err, layer.ErrClosed):
		n.waits = false
		b.settle(n, err)
	default:
		b.waiting = append(b.waiting, n)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

var pause = backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1}

// yieldLater ends the turn of n once it has taken too long and another endpoint
// waits.
func (b *Balancer[Req, Rsp]) yieldLater(ctx context.Context, n *node[Req, Rsp]) *time.Timer {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t *time.Timer
	t = time.AfterFunc(turn, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case ctx.Err() != nil: // the turn is over
		case len(b.waiting) > 0:
			n.endTurn()
		default:
			t.Reset(turn)
		}
	})
	return t
}

// endTurn ends the turn of n, if it has one.
func (n *node[Req, Rsp]) endTurn() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// putBack takes what n says of itself out of its turn: nil, or that it has closed.
func (b *Balancer[Req, Rsp]) putBack(n *node[Req, Rsp], err error) {
	b.mu.Lock()
	if n.status.state() == unready {
		n.endTurn()
		b.settle(n, err)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// settle ends the wait of n, which is ready if err is nil, and else has closed.
func (b *Balancer[Req, Rsp]) settle(n *node[Req, Rsp], err error) {
	if n.reason = err; err == nil {
		b.warm(n)
		b.join(n)
		return
	}
	n.status.setState(closed)
	b.refuser = n
}

// warm begins the slow start of a node that was not ready until now, or not for
// as long as that takes: it may be another process.
func (b *Balancer[Req, Rsp]) warm(n *node[Req, Rsp]) {
	if now := b.now(); b.group.slowStart > 0 && (n.picks() == 0 || since(now, n.away) >= b.group.slowStart) {
		n.restart(now)
	}
}

// free is for a request that is over. What it leaves at an endpoint that was at
// its limit is used at once, and not only in the endpoint's turn.
func (b *Balancer[Req, Rsp]) free(n *node[Req, Rsp]) {
	n.end()
	if n.status.state() == unready && n.poll() == nil {
		b.putBack(n, nil)
	}
}
