package file

import (
	"fmt"
	"math"
	"time"
)

// Option configures [New].
type Option interface{ apply(*options) }

type options struct {
	every time.Duration
	max   int64 // in bytes
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// WithPollInterval sets the interval at which the file is polled while there are
// streams. A poll of an unchanged file is one stat. 0, the default, means 500 ms. It
// panics if d is negative.
func WithPollInterval(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("file: WithPollInterval: %v must not be negative", d))
	}
	return option(func(o *options) { o.every = d })
}

// WithMaxSize sets the size limit of a file in bytes. Parsing may need several hundred times
// that memory for a short time. 0, the default, means 16 MiB. It panics if bytes is negative.
func WithMaxSize(bytes int64) Option {
	if bytes < 0 {
		panic(fmt.Sprintf("file: WithMaxSize: %d must not be negative", bytes))
	}
	return option(func(o *options) { o.max = bytes })
}

func (o options) orDefault() options {
	if o.every == 0 {
		o.every = 500 * time.Millisecond
	}
	if o.max == 0 {
		o.max = 16 << 20
	}
	o.max = min(o.max, math.MaxInt64-1) // one more byte is read to detect a larger file
	return o
}
