package resolve

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/stream"
)

// StalePolicy says how long [ServeStale] trusts what it knows more than what
// a source says after an error. The zero value holds back a total loss for
// 30 s, and keeps a set for as long as its source is away.
type StalePolicy struct {
	// Grace is how long a doubtful answer is held back. 0 means 30 s: three
	// periods of a Kubernetes probe, in which a controller that came back too
	// early has filled its caches. Less than 0 means not at all.
	Grace time.Duration

	// MaxLoss is the share of the endpoints, more than 0 and less than 1, that
	// an answer may lack and still be believed. Any other value means that only
	// the loss of all is doubtful.
	MaxLoss float64

	// MaxAge is how long a set stays in force that its source no longer
	// confirms. 0 or less means for ever.
	MaxAge time.Duration

	// Remember is how long the set of a target is remembered after its last
	// stream ended, so that it is there when the target is asked for again while
	// the source is away. 0 means 24 h. Less than 0 means not at all. Of more
	// than 100 000 endpoints, those that were left first are forgotten.
	IdleTTL time.Duration

	// Log gets a warning when an answer is held back, one an outage, and when
	// a set is let go. A handler that blocks holds up the stream that it is about,
	// and no other. Nil means silence.
	Log *slog.Logger
}

// StaleResolver is the Resolver that [ServeStale] returns.
type StaleResolver struct {
	source Resolver
	policy StalePolicy

	mu     sync.Mutex // guards all watches too
	watch  map[*kept]struct{}
	memory memory
}

// ServeStale returns a Resolver that does not believe at once a source that
// has just been away. An answer is doubtful if it is the first update after an
// error, and says that there is no endpoint, or no target, or lacks more than
// MaxLoss of the endpoints (in number). A lost stream that [Reconnect] opens
// again is an error like any other.
//
// A doubtful answer is held back, and the last good set stays in force. What
// the source says next is put together with it. As soon as that is no longer
// doubtful, it is passed on as one Replace; and so it is, whatever it is, when
// Grace is over. Another error takes a held answer back: Grace begins anew with
// the next one, so that a source whose streams break sooner than that, time after
// time, is not believed. The end of a stream that we ended ourselves, for it was
// idle or old (the stream limits of package linkerd), does not take it back: Grace
// goes on, and is over with the next answer at the earliest. An error that matches
// [ErrUnresolvable] is believed.
//
// In steady state, with an update since the last error, nothing is held back.
//
// A stream begins with an answer of its source. If an error comes first, or
// nothing for a second, it begins with the set of another stream of the target,
// or with the one that is remembered of an earlier stream (see Remember); the
// first answer of the source is then one after an error. So a target that was
// idle, and whose balancer was let go, is served in an outage as well. The
// streams must be of the same StaleResolver for that.
//
// The age of a set is the time since the first error that no answer, other than
// one that is held back, came after; while the source is well it is 0, for
// silence then means that nothing changed. A set that has reached MaxAge is let
// go: the held answer is passed on, or else Empty. What the source says
// after that passes at once. But if the stream of the held answer has ended
// meanwhile, that end is an error after an answer that is in force now: the age
// counts from there.
//
// r should go on after errors, as Reconnect does; when it ends, so does the
// sequence.
func ServeStale(r Resolver, p StalePolicy) *StaleResolver {
	requireResolvers(r)
	if p.Grace == 0 {
		p.Grace = 30 * time.Second
	}
	if p.IdleTTL == 0 {
		p.IdleTTL = 24 * time.Hour
	}
	if !(p.MaxLoss > 0 && p.MaxLoss < 1) {
		p.MaxLoss = 1
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	return &StaleResolver{source: r, policy: p, watch: make(map[*kept]struct{})}
}

// StaleStatus is how one stream of a [StaleResolver] stands.
type StaleStatus struct {
	Target    string
	State     State         // in force
	Endpoints int           // in force
	Age       time.Duration // how long the source has not confirmed that; 0 while it is well
	IsStale   bool          // an answer is held back
	Err       error         // the last error, while Age counts
}

// Status returns how each stream stands that is under way, in the order of the
// targets.
func (k *StaleResolver) Status() []StaleStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]StaleStatus, 0, len(k.watch))
	for w := range k.watch {
		one := StaleStatus{
			Target: w.target, State: w.force.State(), Endpoints: w.force.Len(),
			IsStale: !w.heldAt.IsZero(), Err: w.err,
		}
		if !w.lostAt.IsZero() {
			one.Age = time.Since(w.lostAt)
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b StaleStatus) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Age, b.Age))
	})
	return list
}

// Resolve passes on what the source says of target, as [ServeStale] tells.
func (k *StaleResolver) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		w := &kept{StalePolicy: k.policy, target: target, recallAt: time.Now().Add(recallAfter)}
		k.enter(w)
		defer k.leave(w)
		messages := make(chan message)
		defer startFeed(ctx, k.source, target, 0, messages).close()
		timer := time.NewTimer(0)
		defer timer.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				if u, ok := k.due(ctx, w); ok && !yield(u, nil) {
					return
				}
			case m := <-messages:
				if !k.take(ctx, w, m, yield) {
					return
				}
			}
			k.schedule(w, timer)
		}
	}
}

func (k *StaleResolver) enter(w *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watch[w] = struct{}{}
}

func (k *StaleResolver) leave(w *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.watch, w)
	k.remember(w)
}

// take passes on what may be, and returns whether to go on.
func (k *StaleResolver) take(ctx context.Context, w *kept, m message, yield func(Update, error) bool) bool {
	switch {
	case m.ended && errors.Is(m.err, ErrUnresolvable):
		k.giveUp(w)
		yield(Update{}, m.err)
		return false
	case m.ended:
		return false
	}
	u, ok := k.apply(ctx, w, m)
	return (!ok || yield(u, nil)) && (m.err == nil || yield(Update{}, m.err))
}

// apply returns what to pass on of a message, but for its error.
func (k *StaleResolver) apply(ctx context.Context, w *kept, m message) (Update, bool) {
	return k.locked(ctx, w, func() (Update, bool) {
		if m.err != nil {
			w.lost(m.err)
			return k.recall(w)
		}
		u, ok := w.update(m.update)
		if ok && w.said.State() != StatePending {
			k.memory.drop(w.target) // the stream knows better
		}
		return u, ok
	})
}

// locked returns what f does, and logs what that has to say: not with the lock
// held, for a handler may ask for StaleStatus, or block.
func (k *StaleResolver) locked(ctx context.Context, w *kept, f func() (Update, bool)) (Update, bool) {
	k.mu.Lock()
	u, ok := f()
	lines := w.lines
	w.lines = nil
	k.mu.Unlock()
	for _, l := range lines {
		w.Log.Log(ctx, l.level, l.text, l.args...) //nolint:sloglint // see what calls note: literals
	}
	return u, ok
}

// giveUp forgets a target that will never be resolved.
func (k *StaleResolver) giveUp(w *kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w.force = Set{}
	k.memory.drop(w.target)
}

func (k *StaleResolver) due(ctx context.Context, w *kept) (Update, bool) {
	return k.locked(ctx, w, func() (Update, bool) {
		if at := w.recallAt; !at.IsZero() && !time.Now().Before(at) {
			return k.recall(w)
		}
		return w.expire()
	})
}

func (k *StaleResolver) schedule(w *kept, timer *time.Timer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if at := sooner(w.deadline(), w.recallAt); at.IsZero() {
		timer.Stop()
	} else {
		timer.Reset(time.Until(at))
	}
}

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

// kept is one stream of a Keeper.
type kept struct {
	StalePolicy
	target string

	force Set  // what the consumer was told
	said  Set  // what the source says
	apart bool // the two may differ

	recallAt time.Time // when to begin with what is remembered; zero if that is over

	lostAt  time.Time // first error since the source was believed; zero while it is well
	awayAt  time.Time // first error since its last answer, while waiting
	heldAt  time.Time // when the doubtful answer came; zero if none is held
	waiting bool      // for the first update after an error
	logged  bool      // of this outage
	err     error     // the last one

	lines []line // for the log, once no lock is held
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

// line is one of the log.
type line struct {
	level slog.Level
	text  string
	args  []any
}

// lost notes an error. What is held was said before it, and counts no more, but
// if the source said it on a stream that is well and that we ended.
func (w *kept) lost(err error) {
	if !w.waiting {
		w.awayAt = time.Now()
	}
	w.err, w.waiting = err, true
	if !errors.Is(err, stream.ErrLimit) {
		w.heldAt = time.Time{}
	}
	if w.lostAt.IsZero() {
		w.lostAt = time.Now()
	}
}

// update returns what to pass on of u, if anything.
func (w *kept) update(u Update) (Update, bool) {
	w.said.Apply(u)
	if w.said.State() == StatePending {
		return u, !w.apart // no answer yet
	}
	w.recallAt = time.Time{}
	held := !w.heldAt.IsZero()
	if (w.waiting || held) && w.doubtful() {
		w.waiting, w.apart = false, true
		if !held {
			w.heldAt = time.Now()
			w.hold()
		}
		return Update{}, false
	}
	if w.logged {
		w.note(slog.LevelInfo, "source of endpoints is believed again",
			"endpoints", w.said.Len(), "after", time.Since(w.lostAt))
	}
	if w.apart {
		return w.believe(), true
	}
	w.well()
	w.force.Apply(u)
	return u, true
}

// doubtful compares what the source says with what is in force.
func (w *kept) doubtful() bool {
	good, now := w.force.Len(), w.said.Len()
	// A quotient: 29 of 100 are a share of 0.29, but more than 0.29 times 100.
	return w.Grace > 0 && good > 0 && (now == 0 || float64(good-now)/float64(good) > w.MaxLoss)
}

func (w *kept) hold() {
	if w.logged {
		return
	}
	w.logged = true
	w.note(slog.LevelWarn, "answer after an error is held back; the last good set stays in force",
		"said", w.said.State().String(), "endpoints_said", w.said.Len(),
		"endpoints_kept", w.force.Len(), "grace", w.Grace, "err", w.err)
}

func (w *kept) note(level slog.Level, text string, args ...any) {
	w.lines = append(w.lines, line{level, text, append([]any{"target", w.target}, args...)})
}

// believe makes what the source says what is in force.
func (w *kept) believe() Update {
	w.well()
	w.apart = false
	u := whole(&w.said)
	w.force.Apply(u)
	return u
}

func (w *kept) well() {
	w.lostAt, w.heldAt, w.waiting, w.logged, w.err = time.Time{}, time.Time{}, false, false, nil
}

// deadline is when expire has something to do, or zero for never.
func (w *kept) deadline() time.Time {
	var held, old time.Time
	if !w.heldAt.IsZero() && !w.waiting {
		held = w.heldAt.Add(w.Grace)
	}
	if w.MaxAge > 0 && !w.lostAt.IsZero() && w.force.Len() > 0 {
		old = w.lostAt.Add(w.MaxAge)
	}
	return sooner(held, old)
}

// sooner returns the earlier of two times, of which a zero one is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// letIn makes the held answer what is in force. Where its stream has ended since,
// nothing confirms it any more.
func (w *kept) letIn() Update {
	waiting, logged, err := w.waiting, w.logged, w.err
	u := w.believe()
	if waiting {
		w.lostAt, w.waiting, w.logged, w.err = w.awayAt, true, logged, err
	}
	return u
}

// expire returns what takes the place of the set that is let go, if it is time
// for that.
func (w *kept) expire() (Update, bool) {
	if at := w.deadline(); at.IsZero() || time.Now().Before(at) {
		return Update{}, false
	}
	w.note(slog.LevelWarn, "last good set is let go",
		"endpoints", w.force.Len(), "age", time.Since(w.lostAt), "err", w.err)
	if !w.heldAt.IsZero() {
		return w.letIn(), true
	}
	w.apart, w.logged = true, true
	u := Update{Kind: Empty}
	w.force.Apply(u)
	return u, true
}
