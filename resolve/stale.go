package resolve

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// StalePolicy sets for how long [ServeStale] delays an empty answer and keeps a set, and where it
// logs. The zero value means a delay of 30 s, no maximum age and no log.
type StalePolicy struct {
	// Grace is how long an empty answer after an error is delayed. 0 means 30 s: three periods of
	// a Kubernetes probe, in which a restarted controller has filled its caches. A negative value
	// means no delay.
	Grace time.Duration

	// MaxAge is the age at which a set is dropped: see [ServeStale]. The age is the time since the
	// source failed. 0 or a negative value means no limit.
	MaxAge time.Duration

	// Log receives a warning for each outage in which an answer was delayed, and for each
	// dropped set. If Log is nil, nothing is logged.
	Log *slog.Logger
}

// StaleResolver is the Resolver that [ServeStale] returns.
type StaleResolver struct {
	source Resolver
	policy StalePolicy

	mu      sync.Mutex
	streams map[*staleStream]struct{}
}

// ServeStale returns a Resolver that keeps a target's endpoints while r fails. If the first answer
// after an error contains no endpoints, it is delayed, and the consumer keeps the last set. A lost
// stream that [Reconnect] opens again is such an error.
//
// The delay ends with the next update that contains an endpoint, or after Grace. Then one update
// carries the whole set that r has sent. Another error drops the delayed answer. The next empty
// answer then starts a new delay.
//
// A set's age is 0 until an error follows, because silence means that nothing has changed. After
// that it is the time since the first error. When the age reaches MaxAge, the set is replaced by
// the delayed answer, or by Empty if no answer is delayed.
//
// An error that matches [ErrUnresolvable] is yielded unchanged and ends the sequence. If r's
// sequence ends, so does this one, so r should continue after errors, as Reconnect does.
func ServeStale(r Resolver, p StalePolicy) *StaleResolver {
	requireResolvers(r)
	if p.Grace == 0 {
		p.Grace = 30 * time.Second
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	return &StaleResolver{source: r, policy: p, streams: make(map[*staleStream]struct{})}
}

// StaleStatus describes one stream of a [StaleResolver]: the last set that it yielded, whether the source
// has a newer answer, and the last error.
type StaleStatus struct {
	Target    string
	State     State         // the state of the set that was yielded last
	Endpoints int           // the number of endpoints in that set
	Age       time.Duration // time since the first error after the last answer; 0 without such an error
	IsStale   bool          // whether an empty answer of the source is delayed, so that the set is out of date
	Err       error         // the last error; nil if Age is 0
}

// Status returns each open stream's state, sorted by target.
func (r *StaleResolver) Status() []StaleStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]StaleStatus, 0, len(r.streams))
	for s := range r.streams {
		status := StaleStatus{
			Target: s.target, State: s.served.State(), Endpoints: s.served.Len(),
			IsStale: !s.heldAt.IsZero(), Err: s.err,
		}
		if !s.lostAt.IsZero() {
			status.Age = time.Since(s.lostAt)
		}
		list = append(list, status)
	}
	// Several streams of a target are in the order of their age.
	slices.SortFunc(list, func(a, b StaleStatus) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Age, b.Age))
	})
	return list
}

// Resolve returns the updates of target as [ServeStale] describes.
func (r *StaleResolver) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		s := &staleStream{StalePolicy: r.policy, target: target}
		r.locked(func() { r.streams[s] = struct{}{} })
		defer r.locked(func() { delete(r.streams, s) })
		source := newPuller(ctx, r.source, target)
		defer source.close()
		for {
			// Wakes up at the deadline, with a zero message, for step to end a delay.
			m := source.next(s.deadline())
			switch {
			case ctx.Err() != nil:
				return
			case m.ended:
				// Any other end is silent: the sequence just ends, as ServeStale documents.
				if errors.Is(m.err, ErrUnresolvable) {
					yield(Update{}, m.err)
				}
				return
			}
			var u Update
			var ok bool
			var log func()
			r.locked(func() { u, ok, log = s.step(m) })
			if log != nil {
				log() // without the lock, because a handler may block or call Status
			}
			// An update comes first: an error must follow the endpoints that it concerns.
			if ok && !yield(u, nil) || m.err != nil && !yield(Update{}, m.err) {
				return
			}
		}
	}
}

// locked calls f while it holds the mutex.
func (r *StaleResolver) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// staleStream is the state of one stream from a StaleResolver. Only the stream's goroutine modifies it.
// It holds the StaleResolver's mutex meanwhile, because Status reads the state from other goroutines.
type staleStream struct {
	StalePolicy
	target string

	served Set  // the set that was yielded
	latest Set  // the set of the source
	differ bool // whether served and latest may differ

	lostAt     time.Time // time of the first error since an answer was passed on, or zero
	heldAt     time.Time // time at which the delayed answer arrived, or zero
	afterError bool      // whether the next answer is the first one after an error
	logged     bool      // whether a line about this outage was logged
	err        error     // the last error since lostAt
}

// step applies m, a message from the source, to the stream's state. A zero m, with neither an update
// nor an error, checks whether the deadline has passed. If ok is true, the caller must yield u. If log
// is not nil, the caller must call it to write a log line, after it has released the mutex, because a
// log handler may block.
func (s *staleStream) step(m message) (u Update, ok bool, log func()) {
	switch {
	case m.err != nil:
		// A source that fails again has not confirmed its delayed answer, so heldAt is reset.
		s.err, s.afterError, s.heldAt = m.err, true, time.Time{}
		if s.lostAt.IsZero() {
			s.lostAt = time.Now()
		}
		return Update{}, false, nil
	case m.update.Kind != 0:
		return s.update(m.update)
	}
	// A zero message: usually the deadline has passed, but a source may also yield a zero update.
	if deadline := s.deadline(); deadline.IsZero() || time.Now().Before(deadline) {
		return Update{}, false, nil
	}
	// Grace or MaxAge is over.
	log = s.line(slog.LevelWarn, "last good set is dropped",
		"endpoints", s.served.Len(), "age", time.Since(s.lostAt), "err", s.err)
	// An empty answer was delayed: now it takes effect.
	if !s.heldAt.IsZero() {
		// accept yields the whole set, because the two sets differ since the delay began.
		return s.accept(Update{}), true, log
	}
	// No answer was delayed, and the set is too old.
	// s.latest still has the source's endpoints, so the next answer must be yielded as a whole.
	s.differ, s.logged = true, true
	u = Update{Kind: Empty}
	s.served.Apply(u)
	return u, true, log
}

// update applies u, an answer of the source: it yields it, or delays it if it is the first one after an
// error and contains no endpoints. The results are as for step.
func (s *staleStream) update(u Update) (_ Update, ok bool, log func()) {
	s.latest.Apply(u)
	switch {
	case s.latest.State() == StatePending:
		return u, !s.differ, nil // the source has not answered yet
	case s.mustDelay():
		// A later empty answer does not prolong the delay.
		if s.heldAt.IsZero() {
			s.heldAt = time.Now()
		}
		// One line for an outage, even if the source alternates between errors and empty answers.
		if !s.logged {
			log = s.line(slog.LevelWarn, "empty answer after an error is held back; the last good set stays",
				"state", s.latest.State().String(), "endpoints", s.served.Len(), "grace", s.Grace, "err", s.err)
		}
		s.afterError, s.differ, s.logged = false, true, true
		return Update{}, false, log
	}
	if s.logged {
		log = s.line(slog.LevelInfo, "source of endpoints is back", "endpoints", s.latest.Len(), "after", time.Since(s.lostAt))
	}
	return s.accept(u), true, log
}

// mustDelay reports whether the latest answer contains no endpoints and must be delayed: it is the
// first one after an error, or follows one that is delayed, and the consumer still has endpoints to
// lose.
func (s *staleStream) mustDelay() bool {
	return (s.afterError || !s.heldAt.IsZero()) && s.Grace > 0 && s.served.Len() > 0 && s.latest.Len() == 0
}

// accept makes the yielded set, s.served, equal to s.latest, which is the latest set of the source.
// It returns the update to yield: u, or the whole set if the two sets may differ by more than u.
func (s *staleStream) accept(u Update) Update {
	if s.differ {
		u = whole(&s.latest)
	}
	s.served.Apply(u)
	s.lostAt, s.heldAt, s.err = time.Time{}, time.Time{}, nil
	s.differ, s.afterError, s.logged = false, false, false
	return u
}

// deadline returns the time at which Grace or MaxAge is over. At that time the caller must call
// step with the zero message. deadline returns the zero time if neither runs.
func (s *staleStream) deadline() time.Time {
	var deadline time.Time
	if !s.heldAt.IsZero() {
		deadline = s.heldAt.Add(s.Grace)
	}
	if s.MaxAge > 0 && !s.lostAt.IsZero() && s.served.Len() > 0 {
		// Both may run. The earlier one decides, and step finds out which it was.
		if old := s.lostAt.Add(s.MaxAge); deadline.IsZero() || old.Before(deadline) {
			deadline = old
		}
	}
	return deadline
}

// line returns a function that writes a log line about the stream's target. It is a function because
// the caller holds the mutex.
func (s *staleStream) line(level slog.Level, text string, args ...any) func() {
	return func() {
		// A copy in front, so that each line names its target first.
		args = append([]any{"target", s.target}, args...)
		s.Log.Log(context.Background(), level, text, args...) //nolint:sloglint // the texts are literals
	}
}
