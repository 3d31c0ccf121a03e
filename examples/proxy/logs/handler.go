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

// DefaultTarget is the target of a logger for which [Target] is not used.
const DefaultTarget = "linkerd_app"

// logTarget is the type of the value in the attribute of [Target]. The handler recognizes
// the attribute by this type. It logs other attributes with the key "target" as fields.
type logTarget string

// Target returns the attribute that sets the target of a logger, as in
// log.With(Target("linkerd_tap")). The handler does not log this attribute as a field of
// records.
func Target(name string) slog.Attr { return slog.Any("target", logTarget(name)) }

// Option configures [New].
type Option interface{ apply(h *handler) }

type option func(*handler)

func (f option) apply(h *handler) { f(h) }

// JSON makes the handler write each record as a JSON object on one line:
//
//	{"timestamp":"…","level":"INFO","fields":{"message":"…","k":"v"},"target":"…","spans":[],"threadId":"ThreadId(1)"}
//
// The default is the text format.
func JSON() Option {
	return option(func(h *handler) { h.write = writeJSON })
}

// Start sets the start time of the program. The text format begins each record with the
// time since the start. The default is the time of the call of [New].
func Start(t time.Time) Option {
	return option(func(h *handler) { h.start = t })
}

// New returns a handler that writes records to w, one per line, if level accepts them. It
// limits repeated messages of level info and above, see [lograte.New]. The handler is safe
// for concurrent use and does not close w.
func New(w io.Writer, level *Level, opts ...Option) slog.Handler {
	h := &handler{level: level, out: &output{w: w}, start: time.Now(), target: DefaultTarget, write: writePlain}
	for _, o := range opts {
		o.apply(h)
	}
	return lograte.New(h)
}

// handler is a [slog.Handler] with a target. The copies that WithAttrs and WithGroup return
// share its output.
type handler struct {
	level  *Level
	out    *output
	start  time.Time
	write  func(b []byte, h *handler, r slog.Record) []byte
	target string
	group  string // prefix of the keys of later attributes, with a dot at the end
	fields []field
}

// field is an attribute of a record. Its key begins with the groups of the attribute.
type field struct {
	key   string
	value slog.Value
}

// output is the writer that a handler of [New] shares with all its copies.
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

// of returns the fields of the record r: first those of the logger, then those of r itself.
func (h *handler) of(r slog.Record) []field {
	fields := slices.Clip(h.fields)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendAttr(fields, h.group, a)
		return true
	})
	return fields
}

// appendAttr appends the attribute a to fields. The key of a gets the prefix group. A group
// attribute becomes one field for each of its attributes. An empty attribute is left out,
// as slog requires.
func appendAttr(fields []field, group string, a slog.Attr) []field {
	a.Value = a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return fields
	case a.Value.Kind() != slog.KindGroup:
		return append(fields, field{group + a.Key, a.Value})
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, inner := range a.Value.Group() {
		fields = appendAttr(fields, group, inner)
	}
	return fields
}

// levelName returns the name of l in records, such as INFO. A level between two named
// levels has the name of the lower one.
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
