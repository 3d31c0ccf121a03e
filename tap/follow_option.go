package tap

import (
	"math"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// FollowOption says how [Follow] and [FollowTop] follow.
type FollowOption interface{ applyFollow(o *followOptions) }

type followOption func(*followOptions)

func (f followOption) applyFollow(o *followOptions) { f(o) }

type followOptions struct {
	rps      int
	patience time.Duration
	backoff  backoff.Backoff
	keepRows RowTTL
}

// WithMaxRPS bounds how many requests a second are asked of processes that have
// linkerd's tap only, all together; each has an equal share. The default is 100,
// also for what is 0 or less.
func WithMaxRPS(n int) FollowOption {
	return followOption(func(o *followOptions) { o.rps = n })
}

// WithAnswerTimeout is how long a process may take to answer. The default is 10 s, also
// for what is 0 or less.
func WithAnswerTimeout(d time.Duration) FollowOption {
	return followOption(func(o *followOptions) { o.patience = d })
}

// WithBackoff is how long to wait before a process is asked again: least after the
// first time, and up to most after several, with some jitter. The defaults are
// 100 ms and 10 s, also for what is 0 or less; most is at least least.
func WithBackoff(least, most time.Duration) FollowOption {
	return followOption(func(o *followOptions) { o.backoff.Min, o.backoff.Max = least, most })
}

func newFollowOptions(opts []FollowOption) followOptions {
	var o followOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyFollow(&o)
		}
	}
	o.rps = min(orDefault(o.rps, 100), math.MaxInt32) // which an int has room for everywhere
	if o.patience <= 0 {
		o.patience = 10 * time.Second
	}
	if o.backoff.Max <= 0 {
		o.backoff.Max = max(10*time.Second, o.backoff.Min)
	}
	o.backoff.Jitter = backoff.Default().Jitter
	o.backoff = o.backoff.OrDefault()
	return o
}

// share is how many requests each of n processes may be asked for in what time.
func (o *followOptions) share(n int) (each uint32, every time.Duration) {
	if n <= o.rps {
		return uint32(o.rps / max(n, 1)), time.Second
	}
	return 1, time.Second * time.Duration(n) / time.Duration(o.rps)
}
