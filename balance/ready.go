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

// readySet is a set of ready endpoints. Reading it takes no lock. During a change a reader
// may find an empty slot, or an endpoint that has just left the set. The state of such an
// endpoint is not ready. Writers hold the balancer's mutex.
type readySet struct {
	slots atomic.Pointer[slots]
}

// slots has the endpoints of a ready set in the first n elements of the field at. With more than
// minAperture endpoints, their order is random, because the first ones are the aperture.
type slots struct {
	n     atomic.Int64
	at    []atomic.Pointer[endpoint]
	front atomic.Pointer[[]*endpoint] // a copy of the first endpoints, at most maxExamined; immutable
}

// clear makes the set empty. It must be called once before the set is used.
func (r *readySet) clear() {
	s := &slots{at: make([]atomic.Pointer[endpoint], 4)}
	s.updateFront(0)
	r.slots.Store(s)
}

func (r *readySet) len() int { return int(r.slots.Load().n.Load()) }

// add adds e at a random position. The endpoint at that position moves to the end. In a set
// of fewer than minAperture endpoints, add adds e at the end. draw returns a random number.
func (r *readySet) add(e *endpoint, draw func() uint64) {
	s := r.slots.Load()
	i := int(s.n.Load())
	if i == len(s.at) {
		s = s.grown()
	}
	e.slot = i
	s.at[i].Store(e)
	s.n.Store(int64(i + 1))
	if i >= minAperture {
		s.swap(i, int(draw()%uint64(i+1)))
	}
	s.updateFront(e.slot)
	r.slots.Store(s)
}

func (s *slots) swap(i, j int) {
	a, b := s.at[i].Load(), s.at[j].Load()
	a.slot, b.slot = j, i
	s.at[i].Store(b)
	s.at[j].Store(a)
}

func (s *slots) grown() *slots {
	g := &slots{at: make([]atomic.Pointer[endpoint], 2*len(s.at))}
	for i := range s.at {
		g.at[i].Store(s.at[i].Load())
	}
	g.n.Store(s.n.Load())
	g.front.Store(s.front.Load())
	return g
}

// remove removes e from the set. The last endpoint moves to the slot of e.
func (r *readySet) remove(e *endpoint) {
	s := r.slots.Load()
	last := s.n.Load() - 1
	moved := s.at[last].Load()
	moved.slot = e.slot
	s.at[e.slot].Store(moved)
	s.n.Store(last)
	s.at[last].Store(nil)
	s.updateFront(min(e.slot, int(last)))
}

// updateFront replaces the slice front with a copy of the first endpoints, at most maxExamined. A
// pick scans this copy instead of the slots, because that is faster. The argument i is the lowest
// index of a changed slot. If i is at least maxExamined, front stays the same.
func (s *slots) updateFront(i int) {
	if i >= maxExamined {
		return
	}
	front := make([]*endpoint, min(int(s.n.Load()), maxExamined))
	for i := range front {
		front[i] = s.at[i].Load()
	}
	s.front.Store(&front)
}

// walk visits all indexes below n in n steps, with a random start and a random stride. The
// first few indexes are as good as independent random ones, but need only one random number
// (Mitzenmacher, "Balanced Allocations and Double Hashing", 2014).
type walk struct{ start, at, stride, n int }

func newWalk(random uint64, n int) walk {
	start := int(uint64(uint32(random)) * uint64(n) >> 32)
	stride := 1
	if n > 2 {
		stride += int(random >> 32 * uint64(n-1) >> 32)
	}
	return walk{start: start, at: start, stride: stride, n: n}
}

// next returns the next index.
func (w *walk) next() int {
	i := w.at
	if w.at += w.stride; w.at >= w.n {
		w.at -= w.n
	}
	if w.at == w.start { // the stride has returned to the start
		w.at = (w.at + 1) % w.n
		w.start = w.at
	}
	return i
}

// These constants limit the turns of endpoints that are not ready. In the turn of an endpoint, a
// goroutine of the balancer calls its Ready, which may connect. Other endpoints wait for their
// turn. Turns limit the number of goroutines and of concurrent connection attempts.
const (
	// maxTurns is the largest number of concurrent turns.
	maxTurns = 16

	// turnTime is the time after which a turn ends if another endpoint waits.
	turnTime = time.Second
)

// ready calls Ready of the service of n. It returns a panic as an error.
func (n *node[Req, Rsp]) ready(ctx context.Context) error {
	return panics.Do("Ready", func() error { return n.service.Ready(ctx) })
}

// poll returns nil if the service of n is ready now. It returns a panic as an error.
func (n *node[Req, Rsp]) poll() error {
	return panics.Do("Ready", func() error { return layer.Poll(n.service) })
}

// markUnready makes n unready, so that n waits for a turn. If reason matches layer.ErrClosed, n
// becomes closed instead. n must not be in a ready set, and the caller must hold mu.
func (b *Balancer[Req, Rsp]) markUnready(n *node[Req, Rsp], reason error) {
	n.reason, b.lastUnready, n.unreadySince = reason, n, b.now()
	defer b.count()
	if errors.Is(reason, layer.ErrClosed) {
		n.status.setState(closed)
		return
	}
	n.status.setState(unready)
	if n.queued {
		return // it rejected a request before its turn ended
	}
	n.queued = true
	b.waiting = append(b.waiting, n)
	if b.turns < maxTurns {
		b.turns++
		go b.runTurns()
	}
}

// runTurns runs the turns of waiting endpoints, one after the other, until no endpoint waits.
func (b *Balancer[Req, Rsp]) runTurns() {
	for {
		ctx, n := b.next()
		if n == nil {
			return
		}
		b.await(ctx, n)
	}
}

// next starts the turn of the next waiting node. It returns that node and the context for
// its Ready. It returns a nil node if no node waits or the balancer has ended.
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

// await runs the turn of n: it calls Ready of n until n is ready, closed or removed. If
// another endpoint waits, the turn ends after turnTime, and n waits for its next turn.
func (b *Balancer[Req, Rsp]) await(ctx context.Context, n *node[Req, Rsp]) {
	limit := b.limitTurn(ctx, n)
	err := n.ready(ctx)
	for failures := 0; err != nil && !errors.Is(err, layer.ErrClosed); failures++ {
		// ctx has ended, or Ready returned an error before that.
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

// limitTurn starts a timer that ends the turn of n after turnTime if another endpoint waits.
// If none waits, the timer checks this again after each further turnTime.
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

// endTurn ends the turn of n by canceling the context of its Ready. It does nothing if n has
// no turn now. The caller must hold mu.
func (n *node[Req, Rsp]) endTurn() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// leaveTurn makes an unready node n ready if err is nil, and otherwise closed. It cancels
// the call of Ready of n, if one is in progress. It does nothing if n is not unready.
func (b *Balancer[Req, Rsp]) leaveTurn(n *node[Req, Rsp], err error) {
	b.mu.Lock()
	if n.status.state() == unready {
		n.endTurn()
		b.endWait(n, err)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// endWait makes an unready node n ready if err is nil, and otherwise closed. The caller must
// hold mu.
func (b *Balancer[Req, Rsp]) endWait(n *node[Req, Rsp], err error) {
	if n.reason = err; err == nil {
		b.beginSlow(n)
		b.join(n)
		return
	}
	n.status.setState(closed)
	b.lastUnready = n
}

// beginSlow starts the slow start of n if the policy has one and n may be a new process. n may be a
// new process if n has had no requests, or was unready for at least the duration of a slow start.
func (b *Balancer[Req, Rsp]) beginSlow(n *node[Req, Rsp]) {
	if now := b.now(); b.group.slowStart > 0 && (n.picks() == 0 || since(now, n.unreadySince) >= b.group.slowStart) {
		n.beginSlowStart(now)
	}
}

// finish subtracts a finished request from the requests in flight at n. If n is unready, finish
// polls n, because a service with a limit may now have room. n becomes ready if the poll succeeds.
// Otherwise, if n was the last available node and is idle now, finish ends all ejections.
func (b *Balancer[Req, Rsp]) finish(n *node[Req, Rsp]) {
	n.end()
	if n.status.state() != unready {
		return
	}
	if n.poll() == nil {
		b.leaveTurn(n, nil)
		return
	}
	b.mu.Lock()
	b.readmitAll()
	b.mu.Unlock()
}
