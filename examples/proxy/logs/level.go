package logs

import (
	"log/slog"
	"sync/atomic"
)

// Level is a [Filter] that can be changed while it is in use. It is safe for
// concurrent use; the zero Level is "off".
type Level struct{ filter atomic.Pointer[Filter] }

// NewLevel returns a Level with the filter text, or the error of
// [ParseFilter].
func NewLevel(text string) (*Level, error) {
	l := new(Level)
	return l, l.Set(text)
}

// Set changes the filter, or returns the error of [ParseFilter].
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

func (l *Level) enabled(target string, at slog.Level) bool {
	f := l.filter.Load()
	return f != nil && at >= f.Level(target)
}
