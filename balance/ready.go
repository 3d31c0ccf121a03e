package balance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// readySet is the set of endpoints to pick from. Reading takes no lock. During a change a
// reader may see an empty slot, or an endpoint that has left, which its state shows.
// Writers hold the balancer's mutex.
type readySet struct {
	slots atomic.Pointer[slots]
}

// slots has its endpoints in the first n places, in any order.
type slots struct {
	n   atomic.Int64
	at  []atomic.Pointer[endpoint]
	all atomic.Pointer[[]*endpoint] // the same endpoints if they are few, else nil; immutable
}

// clear makes an empty set. A set must be cleared before its first use.
func (r *readySet) clear() { r.slots.Store(&slots{at: make([]atomic.Pointer[endpoint], 4)}) }

func (r *readySet) len() int { return int(r.slots.Load().n.Load()) }

func (r *readySet) add(e *endpoint) {
	s := r.slots.Load()
	i := s.n.Load()
	if int(i) == len(s.at) {
		s = s.grown()
	}
	e.slot = int(i)
	s.at[i].Store(e)
	s.n.Store(i + 1)
	s.list()
	r.slots.Store(s)
}

func (s *slots) grown() *slots {
	g := &slots{at: make([]atomic.Pointer[endpoint], 2*len(s.at))}
	for i := range s.at {
		g.at[i].Store(s.at[i].Load())
	}
	g.n.Store(s.n.Load())
	return g
}

// remove moves the last endpoint to the place of e.
func (r *readySet) remove(e *endpoint) {
	s := r.slots.Load()
	last := s.n.Load() - 1
	moved := s.at[last].Load()
	moved.slot = e.slot
	s.at[e.slot].Store(moved)
	s.n.Store(last)
	s.at[last].Store(nil)
	s.list()
}

// list updates all, which is faster to scan than slots that may be empty.
func (s *slots) list() {
	n := int(s.n.Load())
	if n > fullScanMax {
		s.all.Store(nil)
		return
	}
	all := make([]*endpoint, n)
	for i := range all {
		all[i] = s.at[i].Load()
	}
	s.all.Store(&all)
}

// walk visits the places below n in n steps, from a random one by a random stride. A few
// in a row are as good as drawn independently (Mitzenmacher, "Balanced Allocations and
// Double Hashing", 2014) and cost one random number.
type walk struct{ start, at, stride, n int }

func newWalk(random uint64, n int) walk {
	start := int(uint64(uint32(random)) * uint64(n) >> 32)
	stride := 1
	if n > 2 {
		stride += int(random >> 32 * uint64(n-1) >> 32)
	}
	return walk{start: start, at: start, stride: stride, n: n}
}

// next returns the next place.
func (w *walk) next() int {
	i := w.at
	if w.at += w.stride; w.at >= w.n {
		w.at -= w.n
	}
	if w.at == w.start { // after a round
		w.at = nextIndex(w.at, w.n)
		w.start = w.at
	}
	return i
}

// nextIndex returns the place after i, of n places.
func nextIndex(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}

// Endpoints that are not ready wait for their turn. In its turn the balancer waits in the
// endpoint's Ready, which may connect. So concurrent connection attempts, and goroutines,
// are limited.
const (
	// maxTurns is how many endpoints have their turn at the same time.
	maxTurns = 16

	// turnTime is the time after which an endpoint ends its turn if another one waits.
	turnTime = time.Second
)

// ready calls Ready of the service. A panic there means not ready.
func (n *node[Req, Rsp]) ready(ctx context.Context) error {
	return panics.Do("Ready", func() error { return n.service.Ready(ctx) })
}

// poll reports whether the service is ready now.
func (n *node[Req, Rsp]) poll() error {
	return panics.Do("Ready", func() error { return layer.Poll(n.service) })
}

// markUnready makes a node that is not in the ready set wait for its turn, unless it is
// closed.
func (b *Balancer[Req, Rsp]) markUnready(n *node[Req, Rsp], reason error) {
	n.reason, b.lastUnready, n.unreadySince = reason, n, b.now()
	defer b.count()
	if errors.Is(reason, layer.ErrClosed) {
		n.status.setState(closed)
		return
	}
	n.status.setState(unready)
	if n.queued {
		return // it was ready and rejected a request before its turn ended
	}
	n.queued = true
	b.waiting = append(b.waiting, n)
	if b.turns < maxTurns {
		b.turns++
		go b.runTurns()
	}
}

// runTurns gives turns until no endpoint waits.
func (b *Balancer[Req, Rsp]) runTurns() {
	for {
		ctx, n := b.next()
		if n == nil {
			return
		}
		b.await(ctx, n)
	}
}

// next begins the next turn.
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
		n.queued = false
	}
	b.turns--
	return nil, nil
}

// await is the turn of n. It ends when n is ready, closed or removed, or after turnTime.
func (b *Balancer[Req, Rsp]) await(ctx context.Context, n *node[Req, Rsp]) {
	limit := b.limitTurn(ctx, n)
	err := n.ready(ctx)
	for failures := 0; err != nil && !errors.Is(err, layer.ErrClosed); failures++ {
		// ctx has ended, or Ready broke its contract.
		if backoff.Sleep(ctx, pause.Delay(failures)) != nil {
			break
		}
		err = n.ready(ctx)
	}
	b.mu.Lock()
	limit.Stop()
	n.endTurn()
	switch {
	case n.status.state() != unready:
		n.queued = false
	case err == nil || errors.Is(err, layer.ErrClosed):
		n.queued = false
		b.endWait(n, err)
	default:
		b.waiting = append(b.waiting, n)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

var pause = backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1}

// limitTurn ends the turn of n after turnTime once another endpoint waits.
func (b *Balancer[Req, Rsp]) limitTurn(ctx context.Context, n *node[Req, Rsp]) *time.Timer {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t *time.Timer
	t = time.AfterFunc(turnTime, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case ctx.Err() != nil: // the turn has ended
		case len(b.waiting) > 0:
			n.endTurn()
		default:
			t.Reset(turnTime)
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

// leaveTurn ends the wait of n outside of its turn: n is ready if err is nil, else
// closed.
func (b *Balancer[Req, Rsp]) leaveTurn(n *node[Req, Rsp], err error) {
	b.mu.Lock()
	if n.status.state() == unready {
		n.endTurn()
		b.endWait(n, err)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// endWait ends the wait of n, which is ready if err is nil, else closed.
func (b *Balancer[Req, Rsp]) endWait(n *node[Req, Rsp], err error) {
	if n.reason = err; err == nil {
		b.beginSlow(n)
		b.join(n)
		return
	}
	n.status.setState(closed)
	b.lastUnready = n
}

// beginSlow begins the slow start of a node that was not ready before, or not for as long
// as a slow start, because it may be another process.
func (b *Balancer[Req, Rsp]) beginSlow(n *node[Req, Rsp]) {
	if now := b.now(); b.group.slowStart > 0 && (n.picks() == 0 || since(now, n.unreadySince) >= b.group.slowStart) {
		n.beginSlowStart(now)
	}
}

// finish ends a request. An unready endpoint that was at its limit may be ready now.
func (b *Balancer[Req, Rsp]) finish(n *node[Req, Rsp]) {
	n.end()
	if n.status.state() == unready && n.poll() == nil {
		b.leaveTurn(n, nil)
	}
}
