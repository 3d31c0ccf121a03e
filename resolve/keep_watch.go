package resolve

import (
	"errors"
	"log/slog"
	"time"

	"github.com/gotower/gotower/internal/stream"
)

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
