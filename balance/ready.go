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

// readySet is a set of ready endpoints that picks read without a lock. During a change, a reader may
// find an empty slot, or an endpoint that has just left the set, so it must check the endpoint's state.
// Writers hold the balancer's mutex.
type readySet struct {
	slots atomic.Pointer[slots]
}

// slots holds the endpoints of a ready set in the first n elements of endpoints. With more than
// minAperture endpoints, their order is random, because the first ones are the aperture.
type slots struct {
	n         atomic.Int64
	endpoints []atomic.Pointer[endpoint]
	front     atomic.Pointer[[]*endpoint] // a copy of the first endpoints, at most maxExamined; immutable
}

// clear makes the set empty. It must be called once before the set is used.
func (r *readySet) clear() {
	// Any small size would do: add doubles it when necessary.
	s := &slots{endpoints: make([]atomic.Pointer[endpoint], 4)}
	s.updateFront(0)
	r.slots.Store(s)
}

// len returns the number of ready endpoints.
func (r *readySet) len() int { return int(r.slots.Load().n.Load()) }

// add adds e to the set, at a random position if the set is larger than minAperture, and otherwise at
// the end. The endpoint that was at this position moves to the end. draw returns a random number.
func (r *readySet) add(e *endpoint, draw func() uint64) {
	s := r.slots.Load()
	i := int(s.n.Load())
	// The new array is filled before readers see it.
	if i == len(s.endpoints) {
		s = s.grown()
	}
	e.slot = i
	s.endpoints[i].Store(e)
	s.n.Store(int64(i + 1))
	// Swapping with a random place keeps the order random, so that each endpoint has the same chance to be in the
	// aperture.
	if i >= minAperture {
		s.swap(i, int(draw()%uint64(i+1)))
	}
	s.updateFront(e.slot)
	r.slots.Store(s)
}

// swap exchanges the endpoints in the slots i and j, which may be the same slot.
func (s *slots) swap(i, j int) {
	a := s.endpoints[i].Load()
	b := s.endpoints[j].Load()
	a.slot, b.slot = j, i
	s.endpoints[i].Store(b)
	s.endpoints[j].Store(a)
}

// grown returns a copy with twice as many slots. Readers may still use the old one.
func (s *slots) grown() *slots {
	g := &slots{endpoints: make([]atomic.Pointer[endpoint], 2*len(s.endpoints))}
	for i := range s.endpoints {
		g.endpoints[i].Store(s.endpoints[i].Load())
	}
	g.n.Store(s.n.Load())
	g.front.Store(s.front.Load())
	return g
}

// remove removes e from the set. The last endpoint moves to the slot of e.
func (r *readySet) remove(e *endpoint) {
	s := r.slots.Load()
	// The last endpoint fills the gap. The count falls before the slot is cleared, so that readers rarely find it
	// empty.
	last := s.n.Load() - 1
	moved := s.endpoints[last].Load()
	moved.slot = e.slot
	s.endpoints[e.slot].Store(moved)
	s.n.Store(last)
	s.endpoints[last].Store(nil)
	s.updateFront(min(e.slot, int(last)))
}

// updateFront replaces front, which picks scan instead of the slots because that is faster, with a copy
// of the first endpoints. i is the lowest index of a slot that has changed; if it is maxExamined or
// more, front stays as it is.
func (s *slots) updateFront(i int) {
	if i >= maxExamined {
		return
	}
	// A new slice, because pickers read the old one without a lock.
	front := make([]*endpoint, min(int(s.n.Load()), maxExamined))
	for i := range front {
		front[i] = s.endpoints[i].Load()
	}
	s.front.Store(&front)
}

// walk visits all indexes below n in n steps, with a random start and a random stride. The
// first few indexes are as good as independent random ones, but need only one random number
// (Mitzenmacher, "Balanced Allocations and Double Hashing", 2014).
type walk struct{ start, index, stride, n int }

// newWalk returns a walk over n indexes. random chooses its start and its stride.
func newWalk(random uint64, n int) walk {
	start := int(uint64(uint32(random)) * uint64(n) >> 32)
	// Up to n−1: a stride of n would stay at the same index.
	stride := 1
	if n > 2 {
		stride += int(random >> 32 * uint64(n-1) >> 32)
	}
	return walk{start: start, index: start, stride: stride, n: n}
}

// next returns the next index.
func (w *walk) next() int {
	i := w.index
	// Indexes beyond the end continue at the beginning.
	if w.index += w.stride; w.index >= w.n {
		w.index -= w.n
	}
	if w.index == w.start { // the stride has returned to the start
		w.index = (w.index + 1) % w.n
		w.start = w.index
	}
	return i
}

// These constants limit the turns of endpoints that are not ready. A turn is the time in which one of
// the balancer's goroutines calls the endpoint's Ready, which may connect. Other endpoints wait for their
// turn. Turns limit the number of goroutines and of concurrent connection attempts.
const (
	// maxTurns is the largest number of concurrent turns.
	maxTurns = 128

	// turnTime is the time after which a turn ends if another endpoint waits.
	turnTime = time.Second
)

// ready calls Ready on n's service. It returns a panic as an error.
func (n *node[Req, Rsp]) ready(ctx context.Context) error {
	return panics.Do("Ready", func() error { return n.service.Ready(ctx) })
}

// poll returns nil if the service of n is ready now. It returns a panic as an error.
func (n *node[Req, Rsp]) poll() error {
	return panics.Do("Ready", func() error { return layer.Poll(n.service) })
}

// markUnready makes n unready for the given reason. n then waits for its turn, in which a goroutine
// calls its Ready: see maxTurns. If reason matches layer.ErrClosed, n becomes closed instead, which is
// final. n must not be in a ready set, and the caller must hold mu.
func (b *Balancer[Req, Rsp]) markUnready(n *node[Req, Rsp], reason error) {
	// lastUnready is the source of the newest reason for a rejection.
	n.reason, b.lastUnready, n.unreadySince = reason, n, b.now()
	defer b.count()
	b.noteDown(n, reason)
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
	// Otherwise one of the running goroutines takes n when its turn comes.
	if b.turns < maxTurns {
		b.turns++
		go b.runTurns()
	}
}

// runTurns runs the turns of waiting endpoints, one after the other, until none waits. It is the
// function of up to maxTurns goroutines.
func (b *Balancer[Req, Rsp]) runTurns() {
	for {
		ctx, n := b.next()
		if n == nil {
			return
		}
		b.await(ctx, n)
	}
}

// next begins the turn of the node that waits longest, and returns it with the context for its Ready.
// If none waits, or the balancer has ended, the node is nil, and the calling goroutine must end.
func (b *Balancer[Req, Rsp]) next() (context.Context, *node[Req, Rsp]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The oldest comes first. Nodes that became ready, ejected or removed meanwhile are skipped.
	for len(b.waiting) > 0 && b.ctx.Err() == nil {
		n := b.waiting[0]
		b.waiting[0] = nil
		b.waiting = b.waiting[1:]
		if n.status.state() == unready {
			var ctx context.Context
			// n.stop ends the turn: see endTurn.
			ctx, n.stop = context.WithCancel(b.ctx)
			return ctx, n
		}
		n.queued = false
	}
	b.turns--
	return nil, nil
}

// await runs n's turn: it calls Ready until n is ready or closed, or the turn ends. A turn ends after
// turnTime if another endpoint waits, in which case n waits for its next one, or when n is removed or
// ejected.
func (b *Balancer[Req, Rsp]) await(ctx context.Context, n *node[Req, Rsp]) {
	limit := b.limitTurn(ctx, n)
	err := n.ready(ctx)
	for failures := 0; err != nil && !errors.Is(err, layer.ErrClosed); failures++ {
		// Ready returned an error although ctx has not ended, or ctx has ended and Sleep returns at once.
		if backoff.Sleep(ctx, pause.Delay(failures)) != nil {
			break
		}
		err = n.ready(ctx)
	}
	b.mu.Lock()
	limit.Stop()
	n.endTurn()
	switch {
	// The node was ejected, removed or made ready by another goroutine.
	case n.status.state() != unready:
		n.queued = false
	case err == nil || errors.Is(err, layer.ErrClosed):
		n.queued = false
		b.endWait(n, err)
	// The turn has ended without a result, so n waits for its next one.
	default:
		b.waiting = append(b.waiting, n)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// pause is the time between two calls of Ready that fail at once.
var pause = backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1}

// limitTurn starts a timer that ends the turn of n after turnTime if another endpoint waits.
// If none waits, the timer checks this again after each further turnTime.
func (b *Balancer[Req, Rsp]) limitTurn(ctx context.Context, n *node[Req, Rsp]) *time.Timer {
	b.mu.Lock() // so that the timer's function cannot run before t is set
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

// endTurn cancels the context of the Ready that a goroutine calls for n, if one does now; that is n's
// turn, see maxTurns. The goroutine then goes on with another node. The caller must hold mu.
func (n *node[Req, Rsp]) endTurn() {
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// leaveTurn ends the wait of the unready node n, without waiting for its Ready, which is canceled if a
// goroutine calls it now: n becomes ready if err is nil, and otherwise closed. It does nothing if n is
// not unready.
func (b *Balancer[Req, Rsp]) leaveTurn(n *node[Req, Rsp], err error) {
	b.mu.Lock()
	if n.status.state() == unready {
		n.endTurn()
		b.endWait(n, err)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// endWait ends the wait of the unready node n: n becomes ready if err is nil, and otherwise closed. The
// caller must hold mu.
func (b *Balancer[Req, Rsp]) endWait(n *node[Req, Rsp], err error) {
	if n.reason = err; err == nil {
		n.probesAtOnce(b.now()) // a new connection is a new start
		b.beginSlow(n)
		b.join(n)
		b.divide()
		b.noteTarget()
		return
	}
	n.status.setState(closed)
	b.lastUnready = n
	b.noteDown(n, err)
	b.noteTarget()
}

// beginSlow starts n's slow start if the policy sets one and n may be a new process: it got no
// requests yet, or was unready for at least as long as a slow start takes.
func (b *Balancer[Req, Rsp]) beginSlow(n *node[Req, Rsp]) {
	length := tick(b.policy.Load().SlowStart)
	// A node that got no requests is new, and one that was away for so long may have lost its caches.
	if now := b.now(); length > 0 && (n.picks() == 0 || since(now, n.unreadySince) >= length) {
		n.beginSlowStart(now)
	}
}

// finish ends the count of a request in flight at n. If n is unready, because a limit has rejected
// another request, there may now be room, so finish polls it and n may become ready. If n does not, and
// was the last available node, all ejections end.
func (b *Balancer[Req, Rsp]) finish(n *node[Req, Rsp]) {
	n.end()
	// Only an unready node may become ready by a free slot.
	if n.status.state() != unready {
		return
	}
	// The finished request may have freed a slot.
	if n.poll() == nil {
		b.leaveTurn(n, nil)
		return
	}
	b.mu.Lock()
	b.readmitAll()
	b.mu.Unlock()
}
