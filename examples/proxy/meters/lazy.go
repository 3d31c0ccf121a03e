package meters

import (
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// lazy is a counter whose series is bound when it first counts.
type lazy struct {
	bind  func() prometheus.Counter
	bound atomic.Pointer[counter]
}

func (l *lazy) With(...string) metrics.Counter { return l }

func (l *lazy) Add(delta float64) {
	c := l.bound.Load()
	if c == nil {
		// Two who bind at a time have the same series.
		c = &counter{l.bind()}
		l.bound.Store(c)
	}
	c.Add(delta)
}
