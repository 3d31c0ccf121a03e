// Package lograte limits repeated log messages.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Burst is the largest number of records with the same message and level that are written within
// the time Period. After that time, one record reports the number of suppressed records.
const (
	Burst  = 10
	Period = 10 * time.Second
)

// mostMessages is the largest number of different messages that are counted. Further
// messages are written without a limit.
const mostMessages = 1000

// New returns a handler that passes at most [Burst] records of each message and level to the
// handler next in a [Period]. After a Period with suppressed records, it writes one record of the
// same level with their number:
//
//	WARN repeated message suppressed message="request failed" count=43210
//
// Records below [slog.LevelInfo] are not limited. Loggers derived by With and WithGroup
// share the limit. If next was returned by New, New returns next unchanged. The handler is
// safe for concurrent use if next is.
func New(next slog.Handler) slog.Handler {
	if _, ok := next.(*handler); ok {
		return next
	}
	return &handler{next, &limits{repeats: make(map[message]*repeats)}}
}

type handler struct {
	slog.Handler
	limits *limits
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.limits.admit(h.Handler, r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.limits}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limits}
}

// limits counts the records of each message and level.
type limits struct {
	mu      sync.Mutex
	repeats map[message]*repeats
}

type message struct {
	level slog.Level
	text  string
}

// repeats has the counts of one message and level in its current period.
type repeats struct {
	since      time.Time // start of the period
	written    int       // number of written records
	suppressed int       // number of suppressed records
}

// admit counts r and reports whether r may be written. At the first suppressed record of a
// period, it starts a timer. At the end of the period, the timer writes the number of
// suppressed records to h.
func (l *limits) admit(h slog.Handler, r slog.Record) bool {
	key, now := message{r.Level, r.Message}, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.repeats[key]
	switch {
	case c == nil:
		if len(l.repeats) >= mostMessages && !l.forget(now) {
			return true
		}
		c = &repeats{since: now}
		l.repeats[key] = c
	case c.suppressed == 0 && now.Sub(c.since) >= Period:
		*c = repeats{since: now}
	}
	if c.written < Burst {
		c.written++
		return true
	}
	if c.suppressed++; c.suppressed == 1 {
		time.AfterFunc(c.since.Add(Period).Sub(now), func() { _ = panics.Contain(func() { l.summarize(h, key) }) })
	}
	return false
}

// forget removes each message if its period is over and no record was suppressed. Messages with
// suppressed records stay, because summarize removes them. It reports whether it removed any
// message. The caller must hold mu.
func (l *limits) forget(now time.Time) bool {
	before := len(l.repeats)
	for key, c := range l.repeats {
		if c.suppressed == 0 && now.Sub(c.since) >= Period {
			delete(l.repeats, key)
		}
	}
	return len(l.repeats) < before
}

// summarize writes the number of suppressed records of the message with the given key to h,
// and ends the period of the message.
func (l *limits) summarize(h slog.Handler, key message) {
	l.mu.Lock()
	suppressed := l.repeats[key].suppressed
	delete(l.repeats, key)
	l.mu.Unlock()
	r := slog.NewRecord(time.Now(), key.level, "repeated message suppressed", 0)
	r.AddAttrs(slog.String("message", key.text), slog.Int("count", suppressed))
	_ = h.Handle(context.Background(), r) // an error cannot be reported
}
