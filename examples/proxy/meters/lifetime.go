package meters

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// seriesLease is the use of series by one owner: an endpoint, route, balancer or
// listener. It ends a retention time after the owner and all holders are gone, and
// then releases the series. A holder is a stream or connection that counts into the
// series, and may outlive the owner.
type seriesLease struct {
	retain  time.Duration
	endless bool         // it never ends, so nothing is remembered for its end
	users   atomic.Int64 // the owner and the holders; far below 0 after the end

	mu    sync.Mutex
	idle  *time.Timer
	due   time.Time // when idle fires
	ended bool
	drops []func()
}

// expired is the number of users of an ended seriesLease.
const expired = math.MinInt64 / 2

func (m *Meters) seriesLease(ctx context.Context) *seriesLease {
	l := &seriesLease{retain: m.retain, endless: ctx.Done() == nil}
	l.hold()
	context.AfterFunc(ctx, l.release)
	return l
}

// hold keeps the series until release. It has no effect after the end.
func (l *seriesLease) hold() { l.users.Add(1) }

// release ends one hold, after the last write.
func (l *seriesLease) release() {
	if l.users.Add(-1) != 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Now().Add(l.retain)
	if l.idle == nil {
		l.idle = time.AfterFunc(l.retain, l.expire)
	} else {
		l.idle.Reset(l.retain)
	}
}

// expire ends the seriesLease unless it was held again since the timer fired.
func (l *seriesLease) expire() {
	l.mu.Lock()
	over := !time.Now().Before(l.due) && l.users.CompareAndSwap(0, expired)
	l.mu.Unlock()
	if over {
		l.end()
	}
}

func (l *seriesLease) end() {
	l.mu.Lock()
	drops := l.drops
	l.ended, l.drops = true, nil
	l.mu.Unlock()
	for _, drop := range drops {
		drop()
	}
}

// add calls drop at the end, or at once after the end.
func (l *seriesLease) add(drop func()) {
	if l.endless {
		return
	}
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.drops = append(l.drops, drop)
	}
	l.mu.Unlock()
	if ended {
		drop()
	}
}

// leasedGauge is a gauge of open streams or connections. Each of them holds the
// seriesLease.
type leasedGauge struct {
	metrics.Gauge
	seriesLease *seriesLease
}

func (h leasedGauge) With(...string) metrics.Gauge { return h }

func (h leasedGauge) Add(delta float64) {
	if delta > 0 {
		h.seriesLease.hold()
	}
	h.Gauge.Add(delta)
	if delta < 0 {
		h.seriesLease.release()
	}
}

// scope is a seriesLease that can be asked whether its series will still be shown for
// a retention time. Writers that write rarely ask before each write.
type scope struct {
	*seriesLease
	ctx   context.Context //nolint:containedctx // of the owner; nil: the scope ends by itself
	renew time.Time       // when a scope without an owner is replaced by a new one
}

func (m *Meters) scope(ctx context.Context) *scope {
	return &scope{seriesLease: m.seriesLease(ctx), ctx: ctx}
}

// lateScope returns a scope for writers whose owner is gone. It lasts a retention time
// from now, and the writer replaces it if it goes on writing.
func (m *Meters) lateScope() *scope {
	often := m.retain / 8
	s := &scope{seriesLease: new(seriesLease), renew: time.Now().Add(often)}
	time.AfterFunc(m.retain+often, s.end)
	return s
}

// holds reports whether the series are shown for a retention time from now.
func (s *scope) holds() bool {
	if s.ctx == nil {
		return time.Now().Before(s.renew)
	}
	return s.ctx.Err() == nil
}
