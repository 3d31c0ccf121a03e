package file

import (
	"fmt"
	"math"
	"time"
)

// Option changes what New returns.
type Option interface{ apply(*options) }

type options struct {
	every time.Duration
	max   int64 // bytes
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// PollEvery sets how often the file is looked at while somebody resolves. A
// look at a file that did not change is one stat. The default, and 0, is 500 ms. A
// negative duration panics.
func PollEvery(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("file: PollEvery: %v must not be negative", d))
	}
	return option(func(o *options) { o.every = d })
}

// MaxSize sets the size in bytes above which a file is refused. Reading takes
// up to some hundred times the file's size of memory for a moment. The default,
// and 0, is 16 MiB. A negative size panics.
func MaxSize(bytes int64) Option {
	if bytes < 0 {
		panic(fmt.Sprintf("file: MaxSize: %d must not be negative", bytes))
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
	o.max = min(o.max, math.MaxInt64-1) // one byte more is read, to see that there is more
	return o
}
