package meters

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// lease is the use of series by one endpoint, route, balancer or listener: its
// owner. It ends a while after its owner has gone, and after the last of what
// counts into them, such as a stream that its owner did not live to see the end
// of; and lets them go then.
type lease struct {
	retain  time.Duration
	endless bool         // there is nothing to remember
	users   atomic.Int64 // the owner, and all who hold; far below 0 once it has ended

	mu    sync.Mutex
	idle  *time.Timer
	due   time.Time // when idle goes off
	ended bool
	drops []func()
}

// lapsed is the users of a lease that has ended.
const lapsed = math.MinInt64 / 2

func (m *Meters) lease(ctx context.Context) *lease {
	l := &lease{retain: m.retain, endless: ctx.Done() == nil}
	l.hold()
	context.AfterFunc(ctx, l.release)
	return l
}

// hold keeps the series until release. Once the lease has ended they are gone.
func (l *lease) hold() { l.users.Add(1) }

// release is called once for each hold, after the last that there is to count.
func (l *lease) release() {
	if l.users.Add(-1) != 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Now().Add(l.retain)
	if l.idle == nil {
		l.idle = time.AfterFunc(l.retain, l.lapse)
	} else {
		l.idle.Reset(l.retain)
	}
}

// lapse ends the lease, unless somebody holds it again, or did so since the
// timer went off.
func (l *lease) lapse() {
	l.mu.Lock()
	over := !time.Now().Before(l.due) && l.users.CompareAndSwap(0, lapsed)
	l.mu.Unlock()
	if over {
		l.end()
	}
}

func (l *lease) end() {
	l.mu.Lock()
	drops := l.drops
	l.ended, l.drops = true, nil
	l.mu.Unlock()
	for _, drop := range drops {
		drop()
	}
}

// add has drop called when the lease ends; at once if it has.
func (l *lease) add(drop func()) {
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

// holding is a gauge of what is open. Each keeps the series, its own and all
// others of the lease.
type holding struct {
	metrics.Gauge
	lease *lease
}

func (h holding) With(...string) metrics.Gauge { return h }

func (h holding) Add(delta float64) {
	if delta > 0 {
		h.lease.hold()
	}
	h.Gauge.Add(delta)
	if delta < 0 {
		h.lease.release()
	}
}
