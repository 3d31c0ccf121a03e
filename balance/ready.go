package balance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// readySet is the endpoints to choose from. Reading takes no lock; it may see a
// set that is just being changed, with a slot that is empty or an endpoint that
// has gone, which its state tells. Writers hold the balancer's mutex.
type readySet struct {
	slots atomic.Pointer[slots]
}

// slots has its endpoints in the first n places, in no particular order.
type slots struct {
	n   atomic.Int64
	at  []atomic.Pointer[endpoint]
	all atomic.Pointer[[]*endpoint] // the same where they are few, else nil; what it points to is never changed
}

// clear leaves nothing. A set has to be cleared before it is used.
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

// remove puts the last endpoint into the place of e.
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

// list makes all anew: to look at all is quicker without slots that may be empty.
func (s *slots) list() {
	n := int(s.n.Load())
	if n > scanned {
		s.all.Store(nil)
		return
	}
	all := make([]*endpoint, n)
	for i := range all {
		all[i] = s.at[i].Load()
	}
	s.all.Store(&all)
}

// walk visits the places below n, each once in n steps, from a random one on
// and by a random stride. Any few of them in a row are as good as drawn
// independently (Mitzenmacher, "Balanced Allocations and Double Hashing", 2014)
// and cost one random number.
type walk struct{ start, at, stride, n int }

func newWalk(random uint64, n int) walk {
	start := int(uint64(uint32(random)) * uint64(n) >> 32)
	stride := 1
	if n > 2 {
		stride += int(random >> 32 * uint64(n-1) >> 32)
	}
	return walk{start: start, at: start, stride: stride, n: n}
}

// next returns a place.
func (w *walk) next() int {
	i := w.at
	if w.at += w.stride; w.at >= w.n {
		w.at -= w.n
	}
	if w.at == w.start { // round, and perhaps not everywhere yet
		w.at = again(w.at, w.n)
		w.start = w.at
	}
	return i
}

// again is where to go on after a round that began at i, of n places.
func again(i, n int) int {
	if i++; i == n {
		return 0
	}
	return i
}

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
