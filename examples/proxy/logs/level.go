package logs

import (
	"log/slog"
	"sync/atomic"
)

// Level is a [Filter] that can be changed while handlers use it. It is safe for concurrent use. The
// zero value is "off".
type Level struct{ filter atomic.Pointer[Filter] }

// NewLevel returns a Level with the filter text. If text is invalid, it returns [ParseFilter]'s
// error.
func NewLevel(text string) (*Level, error) {
	l := new(Level)
	return l, l.Set(text)
}

// Set replaces the filter by the filter text. If text is invalid, Set returns [ParseFilter]'s error
// and changes nothing.
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

// enabled reports whether a record with this target and level should be logged.
func (l *Level) enabled(target string, level slog.Level) bool {
	f := l.filter.Load()
	return f != nil && level >= f.Level(target)
}
