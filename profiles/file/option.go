package file

import (
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Option configures the Source of [New].
type Option interface{ apply(*options) }

type options struct {
	every time.Duration
	max   int64 // bytes
	log   *slog.Logger
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithPollInterval sets the interval of polls. The files are polled while there are streams. A poll
// of an unchanged file costs one stat. The default, and 0, is 500 ms. A negative duration panics.
func WithPollInterval(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("file: WithPollInterval: %v must not be negative", d))
	}
	return option(func(o *options) { o.every = d })
}

// WithMaxSize sets the maximum size of a file in bytes. Parsing may take several hundred times that
// size of memory for a short time. The default, and 0, is 16 MiB. A negative size panics.
func WithMaxSize(bytes int64) Option {
	if bytes < 0 {
		panic(fmt.Sprintf("file: WithMaxSize: %d must not be negative", bytes))
	}
	return option(func(o *options) { o.max = bytes })
}

// WithLogger logs the parts of ServiceProfiles that are left out, after each change of a file. It
// also logs changes of the mistakes in the files, because a [profiles.Router] logs only
// the first error and the recovery. By default, and for nil, nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return option(func(o *options) { o.log = l })
}

func (o options) orDefault() options {
	if o.every == 0 {
		o.every = 500 * time.Millisecond
	}
	if o.max == 0 {
		o.max = 16 << 20
	}
	o.max = min(o.max, math.MaxInt64-1) // the reader reads max+1 bytes to detect larger files
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	return o
}
