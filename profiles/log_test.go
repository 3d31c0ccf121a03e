package profiles_test

import (
	"context"
	"log/slog"
	"sync"
)

// log keeps what a Router logs.
type log struct {
	mu      sync.Mutex
	records []slog.Record
}

func newLog() *log { return new(log) }

func (l *log) logger() *slog.Logger { return slog.New(l) }

func (l *log) Enabled(context.Context, slog.Level) bool { return true }
func (l *log) WithAttrs([]slog.Attr) slog.Handler       { return l } // what it is with, no test looks at
func (l *log) WithGroup(string) slog.Handler            { return l }

func (l *log) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	return nil
}

// attrs returns the values of key in the records with message, in order.
func (l *log) attrs(message, key string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var values []string
	for _, r := range l.records {
		if r.Message != message {
			continue
		}
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == key {
				values = append(values, a.Value.String())
			}
			return true
		})
	}
	return values
}

// lines returns level and message of all records.
func (l *log) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, r := range l.records {
		lines = append(lines, r.Level.String()+" "+r.Message)
	}
	return lines
}

func (l *log) errors(message string) []string { return l.attrs(message, "err") }
