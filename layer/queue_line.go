package layer

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/internal/wake"
)

// line is where requests stand in front of a service that has no room. At any
// time one of those in line has the turn: it alone waits for the service. Those
// whom the service refused time after time, although it was ready, rest: they are
// in line, but for a while nobody waits behind them.
type line struct {
	capacity int
	waiting  atomic.Int64  // in line, those who rest included, to be read without mu
	shown    metrics.Gauge // the same
	tired    atomic.Int64  // have rested, and are neither served nor told yet
	sighted  atomic.Int64  // how often one who had the turn saw the service ready
	vain     atomic.Bool   // somebody waited, and nobody has seen the service ready since

	mu      sync.Mutex
	queue   list.List // of *waiter, by number
	resting []*waiter // by number
	next    int64     // the number of the next to join
	head    *waiter   // whose turn it is; nil when nobody is in line
	last    error     // the service's last refusal
	since   time.Time // while vain: since when, without the times when nobody waited
	emptied time.Time // while vain: when the last one left the line
	room    wake.Broadcast
}

// waiter is one request in line.
type waiter struct {
	since time.Time
	turn  chan struct{}    // receives once, when it is this waiter's turn or it failed
	late  <-chan time.Time // nil, or receives when a guest, or one who came back, has waited for too long

	// With the line's mu.
	number int64         // those who came before it have lesser ones
	place  *list.Element // nil when not in the queue
	failed error
	stop   context.CancelCauseFunc // ends the wait of the one whose turn it is

	guest bool          // it found the line full, and tries once
	ready bool          // it had its turn, and the service was ready
	rest  time.Duration // for how long it rests before it has its next turn
}

func (l *line) empty() bool   { return l.waiting.Load() == 0 }
func (l *line) hasRoom() bool { return l.waiting.Load() < int64(l.capacity) }
func (l *line) len() int64    { return l.waiting.Load() }

// join puts w at the end, unless the line is full and w no guest. What the line
// waited in vain before it was empty counts, unless that was longer ago than forget.
func (l *line) join(w *waiter, forget time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoom() && !w.guest {
		return false
	}
	if l.vain.Load() && l.queue.Len() == 0 {
		pause := time.Since(l.emptied)
		l.since = l.since.Add(pause)
		l.vain.Store(pause <= forget)
	}
	w.number = l.next
	l.next++
	w.place = l.queue.PushBack(w)
	l.rouseFirst()
	l.changed()
	return true
}

// rejoin puts w, who had its turn and was refused after all, where it was: in
// front of all who came after it. One of them may have the turn by now, so w
// has a clock of its own.
func (l *line) rejoin(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.turn, w.ready = make(chan struct{}, 1), false
	l.stand(w)
	l.changed()
}

// lieDown is rejoin for one who is to rest. Those who do ask the service no more
// than twice each restEach, all of them together: one whose rest is over, and
// the first of them with it.
func (l *line) lieDown(w *waiter, rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.rest == 0 {
		l.tired.Add(1)
	}
	i, _ := l.whereRests(w)
	l.resting = slices.Insert(l.resting, i, w)
	w.turn, w.ready = make(chan struct{}, 1), false
	w.rest = max(rest, time.Duration(len(l.resting))*restEach)
	l.changed()
}

const restEach = 100 * time.Microsecond

// rouse puts w, whose rest is over, back into the queue, unless somebody did.
func (l *line) rouse(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.getUp(w) {
		return
	}
	l.stand(w)
	l.rouseFirst()
	l.changed()
}

// passed is called when a request was served that had stood in line: there may
// be room for the first of those who rest.
func (l *line) passed() {
	if l.empty() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rouseFirst()
	l.changed()
}

// rouseFirst lets the first of those who rest go before whoever comes after it.
// Call it with mu held, and changed after it.
func (l *line) rouseFirst() {
	if len(l.resting) > 0 {
		w := l.resting[0]
		l.getUp(w)
		l.stand(w)
	}
}

// stand puts w into the queue, by its number. Call it with mu held.
func (l *line) stand(w *waiter) {
	behind := l.queue.Front()
	for behind != nil && behind.Value.(*waiter).number < w.number {
		behind = behind.Next()
	}
	if behind == nil {
		w.place = l.queue.PushBack(w)
	} else {
		w.place = l.queue.InsertBefore(w, behind)
	}
}

// whereRests is the place of w among those who rest. Call it with mu held.
func (l *line) whereRests(w *waiter) (int, bool) {
	return slices.BinarySearchFunc(l.resting, w, func(a, b *waiter) int { return cmp.Compare(a.number, b.number) })
}

// getUp takes w from those who rest, and reports whether it did. Call it with mu
// held.
func (l *line) getUp(w *waiter) bool {
	i, rests := l.whereRests(w)
	if rests {
		l.resting = slices.Delete(l.resting, i, i+1)
	}
	return rests
}

// leave takes w out and gives its turn, if it had it, to the first in line.
func (l *line) leave(w *waiter) {
	defer l.room.Wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.place != nil {
		l.queue.Remove(w.place)
		w.place = nil
	} else {
		l.getUp(w)
	}
	if l.head == w {
		l.head = nil
	}
	if w.ready {
		l.sighted.Add(1)
		l.vain.Store(false)
	}
	l.changed()
}

// lead is called by w when its turn came, and it begins to wait for the
// service: stop ends that. It returns since when that counts: since w waits, or
// since all who stood in line waited in vain, if that is longer.
func (l *line) lead(w *waiter, stop context.CancelCauseFunc) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.stop = stop
	if w.failed != nil {
		stop(w.failed)
	}
	if !l.vain.Load() {
		l.since = time.Now()
		l.vain.Store(true)
	}
	if l.since.Before(w.since) {
		return l.since
	}
	return w.since
}

// waited returns for how long w has, and for how long all who stood in line did
// so in vain.
func (l *line) waited(w *waiter) (own, inVain time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.vain.Load() {
		inVain = time.Since(l.since)
	}
	return time.Since(w.since), inVain
}

// inVain reports whether those in line wait for a service that is not ready, and
// since when, whoever stood there.
func (l *line) inVain() (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.vain.Load() && l.queue.Len() > 0
}

// rest is how many of those in line rest.
func (l *line) rest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.resting)
}

// failure returns why the line failed while w stood in it, or nil.
func (l *line) failure(w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.failed
}

// fail ends the wait of everyone in line, but for those who rest: they have seen
// the service ready, and their own time is over no later than that of the line.
func (l *line) fail(cause error) {
	defer l.room.Wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.queue.Front(); e != nil; e = l.queue.Front() {
		w := l.queue.Remove(e).(*waiter)
		w.place = nil
		w.failed = cause
		switch {
		case w != l.head:
			w.turn <- struct{}{}
		case w.stop != nil:
			w.stop(cause)
		}
	}
	l.head = nil
	l.changed()
}

// changed keeps what follows from the list: who has the turn, how many wait.
// Call it with mu held.
func (l *line) changed() {
	n := int64(l.queue.Len() + len(l.resting))
	if was := l.waiting.Swap(n); was != n {
		defer l.shown.Add(float64(n - was)) // of several queues, maybe
	}
	switch {
	case l.queue.Len() == 0 && l.vain.Load():
		l.emptied = time.Now()
	case l.queue.Len() > 0 && l.head == nil:
		l.head = l.queue.Front().Value.(*waiter)
		l.head.turn <- struct{}{}
	}
}

func (l *line) refused(err error) {
	l.mu.Lock()
	l.last = err
	l.mu.Unlock()
}

func (l *line) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
