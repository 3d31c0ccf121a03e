package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// dated is a request that carries its remaining time.
type dated struct {
	left  time.Duration
	given bool
}

func readDated(r dated) (time.Duration, bool)      { return r.left, r.given }
func writeDated(_ dated, left time.Duration) dated { return dated{left, true} }
func in(left time.Duration) dated                  { return dated{left, true} }
func datedIn(opts ...layer.Option[int]) datedLayer {
	return layer.DeadlineFromRequest[dated](readDated, opts...)
}
func datedOut(margin time.Duration) datedLayer {
	return layer.DeadlineToRequest[dated, int](writeDated, margin)
}
func answer(context.Context, dated) (int, error)      { return 1, nil }
func never(context.Context, dated) (int, error)       { panic("it must not come here") }
func until(ctx context.Context, _ dated) (int, error) { <-ctx.Done(); return 0, ctx.Err() }

type (
	datedLayer = layer.Layer[dated, int]
	datedFunc  = layer.Func[dated, int]
)

func TestDeadlineFromRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for name, tt := range map[string]struct {
			ctx  context.Context
			req  dated
			want time.Duration // until the inner deadline; 0: without a deadline
		}{
			"without time":       {ctx: t.Context(), req: dated{}},
			"without time, soon": {ctx: soon, req: dated{}, want: time.Second},
			"sets":               {ctx: t.Context(), req: in(3 * time.Second), want: 3 * time.Second},
			"never extends":      {ctx: soon, req: in(3 * time.Second), want: time.Second},
			"sooner":             {ctx: soon, req: in(time.Millisecond), want: time.Millisecond},
			"a nanosecond":       {ctx: t.Context(), req: in(1), want: 1},
		} {
			called := false
			_, err := datedIn()(datedFunc(func(ctx context.Context, req dated) (int, error) {
				called = true
				at, ok := ctx.Deadline()
				assert.Equal(t, tt.want != 0, ok, name)
				if ok {
					assert.Equal(t, tt.want, time.Until(at), name)
				}
				assert.Equal(t, tt.req, req)
				return 1, nil
			})).Call(tt.ctx, tt.req)
			require.NoError(t, err, name)
			require.True(t, called)
		}
		_, err := datedIn()(datedFunc(answer)).Call(t.Context(), in(math.MaxInt64))
		require.NoError(t, err, "no time is too long")
	})
}

func TestDeadlineFromRequestRejectsLate(t *testing.T) {
	rejected := byLabel{}
	svc := datedIn(layer.WithTarget[int]("web:80"), layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(datedFunc(never))
	for _, left := range []time.Duration{0, -1, math.MinInt64} {
		_, err := svc.Call(t.Context(), in(left))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.EqualError(t, err,
			"deadline web:80: out of time: the caller's time was over when the request came: context deadline exceeded")
	}
	require.EqualValues(t, 3, *rejected["deadline"])
	require.Equal(t, "deadline_in rejected=3 expired=0\nlayer.Func\n", layer.Describe(svc).String())
}

// Waiting in a queue does not help a request that is late, so the queue rejects it at once.
func TestDeadlineRejectionInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		svc := layer.Queue[dated, int](10, 0)(datedIn()(datedFunc(never)))
		_, err := svc.Call(t.Context(), in(0))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, time.Since(start))
	})
}

func TestDeadlineFromRequestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		var inner context.Context
		svc := datedIn(layer.WithTarget[int]("web:80"), layer.WithMetrics[int](layer.Instruments{Timeouts: expired}))(
			datedFunc(func(ctx context.Context, req dated) (int, error) {
				inner = ctx
				return until(ctx, req)
			}))
		start := time.Now()
		_, err := svc.Call(t.Context(), in(300*time.Millisecond))
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.NotErrorIs(t, err, layer.ErrNotReady, "it may have been processed")
		require.EqualError(t, err, "deadline web:80: timeout (waited 300ms): context deadline exceeded")
		require.EqualError(t, context.Cause(inner), "the caller's deadline of 300ms exceeded")
		require.EqualValues(t, 1, *expired["deadline"])

		// A cancellation by the caller is not reported as the deadline.
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(gone) })
		_, err = svc.Call(ctx, in(time.Hour))
		require.Equal(t, context.Canceled, err)
		require.Equal(t, gone, context.Cause(inner))
		require.EqualValues(t, 1, *expired["deadline"])
	})
}

func TestDeadlineFromRequestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inner context.Context
		svc := layer.DeadlineFromRequest[time.Duration, *response](func(d time.Duration) (time.Duration, bool) { return d, true })(
			layer.Func[time.Duration, *response](func(ctx context.Context, _ time.Duration) (*response, error) {
				inner = ctx
				return &response{Body: plainBody{ctx}}, nil
			}))
		rsp, err := svc.Call(t.Context(), time.Second)
		require.NoError(t, err)
		require.NoError(t, inner.Err())
		_, err = io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.EqualError(t, err, "deadline: timeout (waited 1s): context deadline exceeded")

		rsp, err = svc.Call(t.Context(), time.Second)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, context.Canceled, context.Cause(inner))
	})
}

func TestDeadlinesDoneContext(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	for _, l := range []datedLayer{datedIn(), datedOut(0)} {
		_, err := l(datedFunc(never)).Call(ctx, in(time.Hour))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, gone)
	}
}

func TestDeadlineToRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for name, tt := range map[string]struct {
			ctx    context.Context
			margin time.Duration
			want   dated
		}{
			"no deadline":       {ctx: t.Context(), margin: time.Hour, want: dated{}},
			"no margin":         {ctx: ctx, want: in(time.Second)},
			"a margin":          {ctx: ctx, margin: time.Millisecond, want: in(999 * time.Millisecond)},
			"all but the least": {ctx: ctx, margin: time.Second - 1, want: in(1)},
		} {
			called := false
			_, err := datedOut(tt.margin)(datedFunc(func(got context.Context, req dated) (int, error) {
				called = true
				assert.Equal(t, tt.want, req, name)
				assert.Equal(t, tt.ctx, got, "the context is passed as it is")
				return 1, nil
			})).Call(tt.ctx, dated{})
			require.NoError(t, err, name)
			require.True(t, called)
		}
	})
}

func TestDeadlineToRequestRejectsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, margin := range []time.Duration{time.Second, time.Hour} {
			svc := datedOut(margin)(datedFunc(never))
			_, err := svc.Call(ctx, dated{})
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.EqualError(t, err, fmt.Sprintf(
				"deadline: out of time: 1s are left, less than the margin of %v: context deadline exceeded", margin))
			require.Equal(t, fmt.Sprintf("deadline_out margin=%v rejected=1\nlayer.Func\n", margin), layer.Describe(svc).String())
		}
	})
}

// A request passes three servers, each with a margin. The remaining time only decreases,
// and the request ends at all of them at once.
func TestDeadlineThroughThreeServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []time.Duration
		var svc layer.Service[dated, int] = datedFunc(until)
		for range 3 {
			next := datedOut(10 * time.Millisecond)(svc)
			svc = datedIn()(datedFunc(func(ctx context.Context, req dated) (int, error) {
				seen = append(seen, req.left)
				time.Sleep(100 * time.Millisecond)
				return next.Call(ctx, req)
			}))
		}
		start := time.Now()
		_, err := svc.Call(t.Context(), in(250*time.Millisecond))
		require.Equal(t, []time.Duration{250 * time.Millisecond, 140 * time.Millisecond, 30 * time.Millisecond}, seen)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 300*time.Millisecond, time.Since(start), "the last server rejects the request")
	})
}
