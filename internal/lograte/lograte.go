// Package lograte limits repeated log messages.
package lograte

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Burst is how many records with the same message and level are written within Period. After that
// time, one record tells how many were suppressed.
const (
	Burst  = 10
	Period = 10 * time.Second
)

// mostMessages is the largest number of different messages that are counted. Further
// messages are written without a limit.
const mostMessages = 1000

// New returns a handler that passes at most [Burst] records with the same message and level to
// next in a [Period]. Afterwards it reports the suppressed ones in a single record at the same
// level:
//
//	WARN repeated message suppressed message="request failed" count=43210
//
// Records below [slog.LevelInfo] are not limited. Loggers derived by With and WithGroup share the
// limit. If next was returned by New, New returns next unchanged. The handler is safe for
// concurrent use if next is.
func New(next slog.Handler) slog.Handler {
	if _, ok := next.(*handler); ok {
		return next
	}
	return &handler{next, &limits{repeats: make(map[message]*repeats)}}
}

// handler is the handler that New returns. Handlers that WithAttrs and WithGroup derive share its
// limits.
type handler struct {
	slog.Handler
	limits *limits
}

// Handle passes r on unless its message was logged too often.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.limits.admit(h.Handler, r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs returns a handler with more attributes and the same limits.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.limits}
}

// WithGroup returns a handler with a group and the same limits.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limits}
}

// limits counts the records of each message and level, to limit how many are written. mu guards
// repeats.
type limits struct {
	mu      sync.Mutex
	repeats map[message]*repeats
}

// message identifies records that count as the same for the limit: those with the same text and
// level, whatever their attributes.
type message struct {
	level slog.Level
	text  string
}

// repeats counts one message and level in its current period.
type repeats struct {
	start      time.Time // start of the period
	written    int       // number of written records
	suppressed int       // number of suppressed records
}

// admit counts r and reports whether r may be written. At the first suppressed record of a
// period, it starts a timer. When the period ends, the timer writes to h how many were
// suppressed.
func (l *limits) admit(h slog.Handler, r slog.Record) bool {
	key := message{r.Level, r.Message}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.repeats[key]
	switch {
	case c == nil:
		if len(l.repeats) >= mostMessages && !l.forget(now) {
			// There is no room to count another message, so it is written uncounted.
			return true
		}
		c = &repeats{start: now}
		l.repeats[key] = c
	// Without a suppressed record, no timer runs that would end the period.
	case c.suppressed == 0 && now.Sub(c.start) >= Period:
		*c = repeats{start: now}
	}
	if c.written < Burst {
		c.written++
		return true
	}
	if c.suppressed++; c.suppressed == 1 {
		time.AfterFunc(c.start.Add(Period).Sub(now), func() { _ = panics.Contain(func() { l.summarize(h, key) }) })
	}
	return false
}

// forget removes each message if its period is over and no record was suppressed. Messages with
// suppressed records stay, because summarize removes them. It reports whether it removed any
// message. The caller must hold mu.
func (l *limits) forget(now time.Time) bool {
	size := len(l.repeats)
	for key, c := range l.repeats {
		if c.suppressed == 0 && now.Sub(c.start) >= Period {
			delete(l.repeats, key)
		}
	}
	return len(l.repeats) < size
}

// summarize writes to h how many records with the given key were suppressed, and ends the
// message's period.
func (l *limits) summarize(h slog.Handler, key message) {
	l.mu.Lock()
	suppressed := l.repeats[key].suppressed
	delete(l.repeats, key)
	l.mu.Unlock()
	r := slog.NewRecord(time.Now(), key.level, "repeated message suppressed", 0)
	r.AddAttrs(slog.String("message", key.text), slog.Int("count", suppressed))
	_ = h.Handle(context.Background(), r) // an error cannot be reported
}
