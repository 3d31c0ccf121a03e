package layer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The timer of a Read may already run when the data arrives. It must not end the request,
// whether it runs before or during the next Read.
func TestIdleTimeoutLateTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := &overrun{&timeLimit{name: "idle timeout", kind: ErrIdleTimeout}, time.Minute}
		over.expired.counter = Instruments{}.orDiscard().Timeouts
		r := &idling{cause: over}
		r.Init(t.Context(), 0, over)
		defer r.End(nil)
		for _, next := range []bool{false, true} {
			r.startRead()
			r.timer.Stop() // as when it has gone off, and its function not begun
			r.finishRead()
			if next {
				r.startRead()
			}
			r.expire()
			require.NoError(t, r.Err())
		}
		r.expire()
		require.Error(t, r.Err())
		require.Equal(t, over, context.Cause(r))
		require.EqualValues(t, 1, over.expired.n.Load())
	})
}
