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

// DefaultTarget is the target of loggers that do not use [Target].
const DefaultTarget = "linkerd_app"

// logTarget marks [Target]'s attribute. The handler recognizes the attribute by this type, and logs
// all others with the key "target" as fields.
type logTarget string

// Target returns the attribute that sets a logger's target, as in log.With(Target("linkerd_tap")).
// It is not logged as a field.
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

// Start sets the program's start time. The text format begins each record with the time since then.
// The default is the time of the call to [New].
func Start(t time.Time) Option {
	return option(func(h *handler) { h.start = t })
}

// New returns a handler that writes the records that level accepts to w, one per line. It limits
// repeated messages of level info and above, see [lograte.New]. The handler is safe for concurrent
// use and does not close w.
func New(w io.Writer, level *Level, opts ...Option) slog.Handler {
	h := &handler{level: level, out: &output{w: w}, start: time.Now(), target: DefaultTarget, write: writePlain}
	for _, o := range opts {
		o.apply(h)
	}
	return lograte.New(h)
}

// handler is a [slog.Handler] with a target. WithAttrs and WithGroup return copies that share its
// output.
type handler struct {
	level  *Level
	out    *output
	start  time.Time
	write  func(b []byte, h *handler, r slog.Record) []byte
	target string
	group  string // prefix for the keys of later attributes, ending in a dot
	fields []field
}

// field is an attribute of a record. Its key includes the names of its groups.
type field struct {
	key   string
	value slog.Value
}

// output is shared by all copies of a handler, so that their records do not interleave.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return h.level.enabled(h.target, level)
}

// Handle writes the record as one line.
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	// The line is formatted without the lock, so that only the write itself is serialized.
	line := append(h.write(make([]byte, 0, 256), h, r), '\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := h.out.w.Write(line)
	return err
}

// WithAttrs returns a handler that adds attrs to each line. The attribute for the target sets the line's target.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	// Clip makes appendAttr copy the fields. Otherwise two loggers made from h could overwrite each other's fields.
	with.fields = slices.Clip(h.fields)
	for _, a := range attrs {
		// Inside a group, "target" is an ordinary field.
		if target, ok := a.Value.Any().(logTarget); ok && h.group == "" {
			with.target = string(target)
			continue
		}
		with.fields = appendAttr(with.fields, h.group, a)
	}
	return &with
}

// WithGroup returns a handler that puts name and a dot before the keys of further attributes.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.group = h.group + name + "."
	return &with
}

// fieldsOf returns the logger's fields, followed by those of r.
func (h *handler) fieldsOf(r slog.Record) []field {
	// Clip makes appendAttr copy the fields, which concurrent records share.
	fields := slices.Clip(h.fields)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendAttr(fields, h.group, a)
		return true
	})
	return fields
}

// appendAttr appends a to fields, with the prefix group before its key. A group becomes one field
// for each of its attributes. slog requires that empty attributes are left out.
func appendAttr(fields []field, group string, a slog.Attr) []field {
	// A LogValuer computes its value only now, when the record is really logged.
	a.Value = a.Value.Resolve()
	switch {
	case a.Equal(slog.Attr{}):
		return fields
	case a.Value.Kind() != slog.KindGroup:
		return append(fields, field{group + a.Key, a.Value})
	}
	// slog requires that a group without a key is inlined.
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, inner := range a.Value.Group() {
		fields = appendAttr(fields, group, inner)
	}
	return fields
}

// levelName returns l's name in records, such as INFO. A level between two named levels gets the
// name of the lower one.
func levelName(l slog.Level) string {
	// The order matters: each case catches what the earlier ones left.
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
