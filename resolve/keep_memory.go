package resolve

import (
	"container/list"
	"slices"
	"time"
)

const (
	// recallAfter is how long a new stream waits for its source before it
	// begins with what is remembered: less than callers wait in a queue.
	recallAfter = time.Second

	// most is how many endpoints are remembered, of all targets: some 30 MB.
	most = 100_000
)

// memory is what was good of targets when their last stream ended.
type memory struct {
	byTarget  map[string]*list.Element
	order     list.List // of memo; in front is what was left first
	endpoints int
}

// memo is what is remembered of a target.
type memo struct {
	target    string
	endpoints []Endpoint
	good      time.Time // until when the source confirmed it
	left      time.Time // when its stream ended
}

// put remembers n, and forgets what is older than keep or too much.
func (m *memory) put(n memo, keep time.Duration) {
	m.drop(n.target)
	if m.byTarget == nil {
		m.byTarget = make(map[string]*list.Element)
	}
	m.byTarget[n.target] = m.order.PushBack(n)
	m.endpoints += len(n.endpoints)
	for e := m.order.Front(); e != nil; e = m.order.Front() {
		first, _ := e.Value.(memo)
		if m.endpoints <= most && n.left.Sub(first.left) < keep {
			return
		}
		m.drop(first.target)
	}
}

func (m *memory) drop(target string) {
	if e := m.byTarget[target]; e != nil {
		n, _ := m.order.Remove(e).(memo)
		m.endpoints -= len(n.endpoints)
		delete(m.byTarget, target)
	}
}

// get returns the memo of a target, or a zero one.
func (m *memory) get(target string, keep time.Duration) memo {
	e := m.byTarget[target]
	if e == nil {
		return memo{}
	}
	n, _ := e.Value.(memo)
	if time.Since(n.left) >= keep {
		m.drop(target)
		return memo{}
	}
	return n
}

// remember keeps what a stream that ends knew.
func (k *StaleResolver) remember(w *kept) {
	switch {
	case k.policy.IdleTTL < 0:
	case w.force.Len() > 0:
		n := memo{w.target, w.force.Endpoints(), w.good(), time.Now()}
		if other := k.memory.get(w.target, k.policy.IdleTTL); other.good.After(n.good) {
			n.endpoints, n.good = other.endpoints, other.good // of a stream that ended before, and knew better
		}
		k.memory.put(n, k.policy.IdleTTL)
	case w.force.State() != StatePending && w.lostAt.IsZero():
		k.memory.drop(w.target)
	}
}

// recall returns what is known of the target of a stream that had no answer
// yet: by another stream of it, or of old.
func (k *StaleResolver) recall(w *kept) (Update, bool) {
	w.recallAt = time.Time{}
	if k.policy.IdleTTL < 0 || w.force.State() != StatePending {
		return Update{}, false
	}
	best := k.memory.get(w.target, k.policy.IdleTTL)
	for o := range k.watch {
		if o.target == w.target && o.force.Len() > 0 && o.good().After(best.good) {
			best.endpoints, best.good = o.force.Endpoints(), o.good()
		}
	}
	if len(best.endpoints) == 0 || k.policy.MaxAge > 0 && time.Since(best.good) >= k.policy.MaxAge {
		return Update{}, false
	}
	return w.recall(best), true
}

// recall makes what is remembered what is in force. The next answer is judged
// by it, as one that comes after an error.
func (w *kept) recall(n memo) Update {
	w.apart, w.waiting = true, true
	w.lostAt = n.good
	u := Update{Kind: Replace, Endpoints: slices.Clone(n.endpoints)} // the consumer may do with it what it likes
	w.force.Apply(u)
	return u
}

// good is until when the source confirmed what is in force.
func (w *kept) good() time.Time {
	if w.lostAt.IsZero() {
		return time.Now()
	}
	return w.lostAt
}
