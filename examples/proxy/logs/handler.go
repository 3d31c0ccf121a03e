package logs

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/lograte"
)

// DefaultTarget is the target of loggers without a target.
const DefaultTarget = "linkerd_app"

// logTarget is the value of the attribute Target. It has a type, because layers log
// destinations as "target".
type logTarget string

// Target returns the attribute that sets the target of a logger:
// log.With(Target("linkerd_tap")). An attribute "target" with another value is a field.
func Target(name string) slog.Attr { return slog.Any("target", logTarget(name)) }

// Option configures [New].
type Option interface{ apply(h *handler) }

type option func(*handler)

func (f option) apply(h *handler) { f(h) }

// JSON writes each record as a JSON object on one line:
//
//	{"timestamp":"…","level":"INFO","fields":{"message":"…","k":"v"},"target":"…","spans":[],"threadId":"ThreadId(1)"}
//
// The default is plain text, with the time since the start.
func JSON() Option {
	return option(func(h *handler) { h.write = writeJSON })
}

// Start sets the start of the program, for the time in text. The default is the call of
// New.
func Start(t time.Time) Option {
	return option(func(h *handler) { h.start = t })
}

// New returns a handler that writes the records that level accepts to w, one per line. Of
// a message above debug it writes ten in ten seconds, and then the number of the others.
// It is safe for concurrent use and does not close w.
func New(w io.Writer, level *Level, opts ...Option) slog.Handler {
	h := &handler{level: level, out: &output{w: w}, start: time.Now(), target: DefaultTarget, write: writePlain}
	for _, o := range opts {
		o.apply(h)
	}
	return lograte.New(h)
}

type handler struct {
	level  *Level
	out    *output
	start  time.Time
	write  func(b []byte, h *handler, r slog.Record) []byte
	target string
	group  string // of later attributes, with a dot at the end
	fields []field
}

// field is an attribute. Its key includes its groups.
type field struct {
	key   string
	value slog.Value
}

// output is shared by all handlers of one New.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (h *handler) Enabled(_ context.Context, at slog.Level) bool {
	return h.level.enabled(h.target, at)
}

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	line := append(h.write(make([]byte, 0, 256), h, r), '\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := h.out.w.Write(line)
	return err
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.fields = slices.Clip(h.fields)
	for _, a := range attrs {
		if target, ok := a.Value.Any().(logTarget); ok && h.group == "" {
			with.target = string(target)
			continue
		}
		with.fields = appendAttr(with.fields, h.group, a)
	}
	return &with
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.group = h.group + name + "."
	return &with
}

// of returns the fields of a record, those of its logger first.
func (h *handler) of(r slog.Record) []field {
	fields := slices.Clip(h.fields)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendAttr(fields, h.group, a)
		return true
	})
	return fields
}

// appendAttr flattens groups and drops empty attributes, as slog requires.
func appendAttr(to []field, group string, a slog.Attr) []field {
	a.Value = a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return to
	case a.Value.Kind() != slog.KindGroup:
		return append(to, field{group + a.Key, a.Value})
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, inner := range a.Value.Group() {
		to = appendAttr(to, group, inner)
	}
	return to
}

// levelName returns the name of a level as in filters.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "TRACE"
	case l < slog.LevelInfo:
		return "DEBUG"
	case l < slog.LevelWarn:
		return "INFO"
	case l < slog.LevelError:
		return "WARN"
	}
	return "ERROR"
}
