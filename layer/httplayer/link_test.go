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
		admitted(t, l)
		admitted(t, l)
		mine, _ := l.claim()
		assert.NotZero(t, mine)
		mine, wait := l.claim()
		assert.Zero(t, mine)
		assert.Equal(t, 5*time.Second, wait)

		// All of these fail; that is one failure.
		for range 3 {
			l.report(odd)
			assert.Equal(t, time.Second, in())
		}
		assert.EqualValues(t, 3, l.changes.Load())

		// Down: nobody before the back-off is over, and then one.
		_, err := l.admit()
		assert.ErrorIs(t, err, odd)
		mine, wait = l.claim()
		assert.Zero(t, mine)
		assert.Equal(t, time.Second, wait)
		time.Sleep(time.Second)
		admitted(t, l)
		_, err = l.admit()
		assert.ErrorIs(t, err, odd)
		mine, _ = l.claim()
		assert.Zero(t, mine)
		for range 2 { // a straggler does not count
			l.report(odd)
			assert.Equal(t, 2*time.Second, in())
		}

		// One who never reports does not keep others out for good.
		time.Sleep(2 * time.Second)
		admitted(t, l)
		time.Sleep(5 * time.Second)
		mine, _ = l.claim()
		assert.NotZero(t, mine)

		// One that came to nothing is given back, by who was allowed it and nobody
		// else, and does not count as a failure.
		l.forgo(mine - 1)
		assert.Equal(t, 5*time.Second, in())
		l.forgo(mine)
		assert.Equal(t, 2*time.Second, in())
		time.Sleep(2 * time.Second)
		again, _ := l.claim()
		assert.NotZero(t, again)
		l.forgo(mine)
		assert.Equal(t, 5*time.Second, in())

		l.report(nil)
		assert.True(t, l.up())
		admitted(t, l)
		l.report(odd)
		assert.Equal(t, time.Second, in(), "the back-off begins anew")
	})
}

func admitted(t *testing.T, l *link) {
	t.Helper()
	_, err := l.admit()
	assert.NoError(t, err)
}
