package httplayer

import (
	"sync"
	"sync/atomic"
	"time"
)

// takenBack counts the streams of a connection that were reset, against an
// allowance: most of them at once, most more in a second, and one for each
// response that began.
type takenBack struct {
	most int64
	much atomic.Bool

	mu   sync.Mutex
	used int64
	at   time.Time // when used was last made less by time
}

func (t *takenBack) answered() {
	t.mu.Lock()
	t.used = max(0, t.used-1)
	t.mu.Unlock()
}

func (t *takenBack) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.IsZero() {
		t.at = time.Now()
	}
	if t.used++; t.used <= t.most {
		return
	}
	now := time.Now()
	back := int64(now.Sub(t.at).Seconds() * float64(t.most))
	if back > 0 {
		t.used, t.at = max(1, t.used-back), now
	}
	if t.used > t.most {
		t.much.Store(true)
	}
}

func (t *takenBack) over() bool { return t.much.Load() }
