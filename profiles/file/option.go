package file

import (
	"fmt"
	"log/slog"
	"time"
)

// Option configures the Source of [New].
type Option interface{ apply(*options) }

type options struct {
	every time.Duration
	log   *slog.Logger
}

// maxSize is the largest size of a file in bytes. Parsing may take several hundred times
// that size of memory for a short time.
const maxSize = 16 << 20

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithPollInterval sets the time between two polls of the file. The file is polled while
// at least one sequence of Watch is in use. A poll of an unchanged file is one call of
// stat. 0, the default, means 500 ms. A negative duration panics.
func WithPollInterval(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("file: WithPollInterval: %v must not be negative", d))
	}
	return option(func(o *options) { o.every = d })
}

// WithLogger sets the logger for the parts of ServiceProfiles that are left out. They are
// logged after each change of the file. With nil, the default, nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return option(func(o *options) { o.log = l })
}

func (o options) orDefault() options {
	if o.every == 0 {
		o.every = 500 * time.Millisecond
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	return o
}
