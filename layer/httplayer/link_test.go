package httplayer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{backoff: layer.Backoff{Min: time.Second, Max: time.Minute}, patience: 5 * time.Second}
		odd := errors.New("odd")
		in := func() time.Duration { return time.Until(l.next) }

		// Nobody tried: requests may, all of them; one may try to find out.
		assert.False(t, l.up())
		assert.NoError(t, l.admit())
		assert.NoError(t, l.admit())
		_, ok := l.claim()
		assert.True(t, ok)
		wait, ok := l.claim()
		assert.False(t, ok)
		assert.Equal(t, 5*time.Second, wait)

		// All of these fail; that is one failure.
		for range 3 {
			l.report(odd)
			assert.Equal(t, time.Second, in())
		}
		assert.EqualValues(t, 3, l.changes.Load())

		// Down: nobody before the back-off is over, and then one.
		assert.ErrorIs(t, l.admit(), odd)
		wait, ok = l.claim()
		assert.False(t, ok)
		assert.Equal(t, time.Second, wait)
		time.Sleep(time.Second)
		assert.NoError(t, l.admit())
		assert.ErrorIs(t, l.admit(), odd)
		_, ok = l.claim()
		assert.False(t, ok)
		for range 2 { // a straggler does not count
			l.report(odd)
			assert.Equal(t, 2*time.Second, in())
		}

		// One who never reports does not keep others out for good.
		time.Sleep(2 * time.Second)
		assert.NoError(t, l.admit())
		time.Sleep(5 * time.Second)
		_, ok = l.claim()
		assert.True(t, ok)

		l.report(nil)
		assert.True(t, l.up())
		assert.NoError(t, l.admit())
		l.report(odd)
		assert.Equal(t, time.Second, in(), "the back-off begins anew")
	})
}
