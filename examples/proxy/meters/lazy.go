package meters

import (
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// lazy is a counter whose series is bound when it first counts, and not when
// nothing is added to it: linkerd's proxy has no such series before.
type lazy struct {
	bind  func() prometheus.Counter
	bound atomic.Pointer[counter]
}

func (l *lazy) With(...string) metrics.Counter { return l }

func (l *lazy) Add(delta float64) {
	c := l.bound.Load()
	if c == nil {
		if delta == 0 {
			return
		}
		// Two who bind at a time have the same series.
		c = &counter{l.bind()}
		l.bound.Store(c)
	}
	c.Add(delta)
}
