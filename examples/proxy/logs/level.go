package logs

import (
	"log/slog"
	"sync/atomic"
)

// Level is a [Filter] that can be changed while handlers use it. It is safe for concurrent
// use. The zero value is "off".
type Level struct{ filter atomic.Pointer[Filter] }

// NewLevel returns a Level with the filter that text specifies. It returns the error of
// [ParseFilter] if text is invalid.
func NewLevel(text string) (*Level, error) {
	l := new(Level)
	return l, l.Set(text)
}

// Set changes the filter to the one that text specifies. If text is invalid, Set returns
// the error of [ParseFilter], and the filter does not change.
func (l *Level) Set(text string) error {
	f, err := ParseFilter(text)
	if err == nil {
		l.filter.Store(&f)
	}
	return err
}

// Filter returns the current filter.
func (l *Level) Filter() Filter {
	if f := l.filter.Load(); f != nil {
		return *f
	}
	return Filter{}
}

// enabled reports whether a record with the given target and level is logged.
func (l *Level) enabled(target string, level slog.Level) bool {
	f := l.filter.Load()
	return f != nil && level >= f.Level(target)
}
