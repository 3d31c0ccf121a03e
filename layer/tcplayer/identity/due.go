package identity

import (
	"context"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// due is a moment by both clocks of the machine. Timers go by one that nobody
// sets and that stands still while the machine is suspended, certificates expire
// by the other.
type due struct{ timer, wall time.Time }

// dueIn is the moment after d.
func (i *Identity) dueIn(d time.Duration) due {
	return due{time.Now().Add(d), i.wall().Add(d)}
}

// left is how long it is until then by the clock that is there first.
func (i *Identity) left(d due) time.Duration {
	return min(time.Until(d.timer), d.wall.Round(0).Sub(i.wall())) // Round takes the other clock away
}

// lookEvery is how long the wall clock may be past a moment without notice.
const lookEvery = time.Minute

// await waits until d has come by either clock, or ctx ends.
func (i *Identity) await(ctx context.Context, d due) {
	for left := i.left(d); left > 0; left = i.left(d) {
		if backoff.Sleep(ctx, min(left, lookEvery)) != nil {
			return
		}
	}
}
