package file

import (
	"fmt"
	"time"
)

// Option configures [New].
type Option interface{ apply(*options) }

type options struct {
	every time.Duration
}

// maxSize is the largest size of a file in bytes. Parsing may take several hundred times
// that size of memory for a short time.
const maxSize = 16 << 20

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

func (o options) orDefault() options {
	if o.every == 0 {
		o.every = 500 * time.Millisecond
	}
	return o
}
