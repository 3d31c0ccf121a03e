package reqctx_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/reqctx"
)

type nobody struct{}

func (*nobody) ContextDone(error) {}

// The requests of a connection use the same timer, so that a time limit costs only its context.
func TestAlarmAllocations(t *testing.T) {
	conn := reqctx.Detach(t.Context())
	allocations := testing.AllocsPerRun(100, func() {
		c := reqctx.New(conn, time.Hour, nil)
		r := reqctx.Watch(c, new(nobody))
		r.Stop()
		c.Release()
	})
	assert.LessOrEqual(t, allocations, 1.0)
}

// Each request on a connection ends at its own limit, also two at the same time and one after another.
func TestAlarmLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := reqctx.Detach(t.Context())
		limit := errors.New("limit")
		first := reqctx.New(conn, time.Second, limit)
		first.Done()
		time.Sleep(time.Second / 2)
		first.Release()
		start := time.Now()
		second := reqctx.New(conn, 3*time.Second, limit)
		third := reqctx.New(conn, 2*time.Second, limit)
		second.Done()
		<-third.Done()
		assert.Equal(t, 2*time.Second, time.Since(start))
		fourth := reqctx.New(conn, time.Hour, limit)
		fourth.Done()
		require.NoError(t, second.Err())
		<-second.Done()
		assert.Equal(t, 3*time.Second, time.Since(start))
		for _, c := range []context.Context{second, third} {
			require.ErrorIs(t, context.Cause(c), limit)
		}
		require.NoError(t, fourth.Err())
		fourth.Release()
	})
}
