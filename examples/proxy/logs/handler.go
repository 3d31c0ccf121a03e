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

// DefaultTarget is the target of records whose logger was given none.
const DefaultTarget = "linkerd_app"

// logTarget is the value that gives a logger its target. It is a type of its own
// because "target" is also what a layer calls the destination that it logs of.
type logTarget string

// Target is the attribute that gives a logger its target: log.With(Target("linkerd_tap")).
// An attribute "target" of any other value is a field like others.
func Target(name string) slog.Attr { return slog.Any("target", logTarget(name)) }

// Option sets up a handler.
type Option interface{ apply(h *handler) }

type option func(*handler)

func (f option) apply(h *handler) { f(h) }

// JSON has each record written as a JSON object in a line:
//
//	{"timestamp":"…","level":"INFO","fields":{"message":"…","k":"v"},"target":"…","spans":[],"threadId":"ThreadId(1)"}
//
// The default is plain text, with the time since the start.
func JSON() Option {
	return option(func(h *handler) { h.write = writeJSON })
}

// Start says when the program began, for the time in plain text. The default is
// when the handler was made.
func Start(t time.Time) Option {
	return option(func(h *handler) { h.start = t })
}

// New returns a handler that writes the records that level lets through to w, a
// line each. Of a message above debug it writes ten in ten seconds, and then the
// count of the others. It is safe for concurrent use, and does not close w.
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
	group  string // of attributes to come, with a dot behind it
	fields []field
}

// field is an attribute with its groups before its name.
type field struct {
	key   string
	value slog.Value
}

// output is where all handlers of one New write to.
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

// appendAttr flattens groups, and drops what is empty, as slog asks for.
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

// nameOf is the word for a level that filters have, too.
func nameOf(l slog.Level) string {
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
