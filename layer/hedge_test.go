package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// after is a policy that sends the copy after a fixed time.
func after[Req any](d time.Duration) layer.HedgePolicy[Req] {
	return layer.HedgePolicy[Req]{MinDelay: d, MaxDelay: d}
}

// hedgeNode returns the state of the hedge on top of svc: sent, won and skipped.
func hedgeNode[Req, Rsp any](svc layer.Service[Req, Rsp]) [3]int64 {
	state := layer.Describe(svc).State
	return [3]int64{state.Get("sent").(int64), state.Get("won").(int64), state.Get("skipped").(int64)}
}

// script serves the first attempt by its first function, and the copy by the second one.
type script []func(context.Context) (int, error)

func (s script) service(n *atomic.Int64) layer.Service[int, int] {
	return layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		return s[n.Add(1)-1](ctx)
	})
}

func answers(n int, d time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		select {
		case <-time.After(d):
			return n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func fails(err error, d time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		if _, gone := answers(0, d)(ctx); gone != nil {
			return 0, gone
		}
		return 0, err
	}
}

var (
	errFirst  = errors.New("the first fails")
	errSecond = errors.New("the second fails")
)

func TestHedgeResult(t *testing.T) { // the copy is sent after a second
	const s = time.Second
	for name, c := range map[string]struct {
		script script
		want   int
		err    error
		took   time.Duration
		node   [3]int64 // sent, won, skipped
	}{
		"first in time":                {script{answers(1, s/2)}, 1, nil, s / 2, [3]int64{}},
		"first fails in time":          {script{fails(errFirst, s/2)}, 0, errFirst, s / 2, [3]int64{}},
		"first is rejected in time":    {script{fails(layer.ErrNotReady, s/2)}, 0, layer.ErrNotReady, s / 2, [3]int64{}},
		"first wins":                   {script{answers(1, 2*s), answers(2, 2*s)}, 1, nil, 2 * s, [3]int64{1, 0, 0}},
		"copy wins":                    {script{answers(1, 9*s), answers(2, s)}, 2, nil, 2 * s, [3]int64{1, 1, 0}},
		"first fails, copy wins":       {script{fails(errFirst, 2*s), answers(2, 2*s)}, 2, nil, 3 * s, [3]int64{1, 1, 0}},
		"copy fails, first wins":       {script{answers(1, 4*s), fails(errSecond, s)}, 1, nil, 4 * s, [3]int64{1, 0, 0}},
		"copy fails, first fails":      {script{fails(errFirst, 4*s), fails(errSecond, s)}, 0, errFirst, 4 * s, [3]int64{1, 0, 0}},
		"first fails, copy fails":      {script{fails(errFirst, 2*s), fails(errSecond, 3*s)}, 0, errFirst, 4 * s, [3]int64{1, 0, 0}},
		"copy is rejected":             {script{answers(1, 4*s), fails(layer.ErrNotReady, 0)}, 1, nil, 4 * s, [3]int64{0, 0, 1}},
		"copy is rejected, first too":  {script{fails(layer.ErrClosed, 4*s), fails(layer.ErrNotReady, 0)}, 0, layer.ErrClosed, 4 * s, [3]int64{0, 0, 1}},
		"first is rejected, copy wins": {script{fails(layer.ErrNotReady, 2*s), answers(2, 2*s)}, 2, nil, 3 * s, [3]int64{1, 1, 0}},
		// The request was sent, so the error must not match a rejection.
		"first is rejected, copy fails": {script{fails(layer.ErrNotReady, 2*s), fails(errSecond, 3*s)}, 0, errSecond, 4 * s, [3]int64{1, 0, 0}},
		"copy fails, first is rejected": {script{fails(layer.ErrNotReady, 4*s), fails(errSecond, s)}, 0, errSecond, 4 * s, [3]int64{1, 0, 0}},
		"injected, copy wins":           {script{fails(layer.ErrInjected, 2*s), answers(2, 2*s)}, 2, nil, 3 * s, [3]int64{1, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				svc := layer.Hedge[int, int](after[int](s))(c.script.service(&calls))
				start := time.Now()
				got, err := svc.Call(t.Context(), 7)
				require.Equal(t, c.took, time.Since(start))
				require.Equal(t, c.want, got)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, errors.Is(c.err, layer.ErrNotReady), errors.Is(err, layer.ErrNotReady))
				synctest.Wait()
				require.Equal(t, c.node, hedgeNode(svc))
				require.EqualValues(t, len(c.script), calls.Load())
			})
		})
	}
}

// A response that the classifier calls a failure does not win. An error that it calls a
// success wins.
func TestHedgeClassifier(t *testing.T) {
	notFound := errors.New("not found")
	classify := layer.WithClassifier(func(o layer.Outcome[int]) layer.Class {
		if o.Response >= 500 || o.Err != nil && o.Err != notFound {
			return layer.Failure
		}
		return layer.Success
	})
	const s = time.Second
	for name, c := range map[string]struct {
		script script
		want   int
		err    error
	}{
		"a failed response waits":               {script{answers(500, 2*s), answers(200, 9*s)}, 200, nil},
		"of two failed responses the first":     {script{answers(500, 2*s), answers(501, 9*s)}, 500, nil},
		"an error before a failed response":     {script{fails(errFirst, 2*s), answers(501, 9*s)}, 0, errFirst},
		"an error after a failed response":      {script{answers(500, 2*s), fails(errSecond, 9*s)}, 500, nil},
		"an error that is no failure":           {script{fails(notFound, 2*s), answers(200, 9*s)}, 0, notFound},
		"an error of the copy that is none too": {script{answers(200, 9*s), fails(notFound, 0)}, 0, notFound},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				got, err := layer.Hedge[int](after[int](s), classify)(c.script.service(&calls)).Call(t.Context(), 7)
				require.Equal(t, c.want, got)
				require.Equal(t, c.err, err)
			})
		})
	}
}

func TestHedgeQuantileDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took atomic.Int64
		svc := layer.Hedge[int, int](layer.HedgePolicy[int]{Quantile: 0.9, MinSamples: 10})(
			layer.Func[int, int](func(ctx context.Context, _ int) (int, error) { return answers(1, time.Duration(took.Load()))(ctx) }))
		took.Store(int64(time.Minute))
		_, err := svc.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, [3]int64{}, hedgeNode(svc), "there are no samples")
		require.Nil(t, layer.Describe(svc).State.Get("delay"))

		for i := range 100 {
			took.Store(int64(time.Duration(i+1) * time.Millisecond))
			_, err := svc.Call(t.Context(), 0)
			require.NoError(t, err)
		}
		time.Sleep(time.Second) // the estimate is updated
		require.InDelta(t, 90*time.Millisecond, layer.Describe(svc).State.Get("delay"), float64(3*time.Millisecond))
		before := hedgeNode(svc)
		took.Store(int64(time.Second))
		start := time.Now()
		_, err = svc.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(start))
		synctest.Wait()
		require.Equal(t, before[0]+1, hedgeNode(svc)[0])

		time.Sleep(2 * time.Minute)
		require.Nil(t, layer.Describe(svc).State.Get("delay"), "the samples are too old")
	})
}

func TestHedgeDelayBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ took, want time.Duration }{
			{time.Microsecond, 20 * time.Millisecond}, {time.Minute, 50 * time.Millisecond},
		} {
			svc := layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1, MinDelay: 20 * time.Millisecond, MaxDelay: 50 * time.Millisecond})(
				layer.Func[int, int](func(ctx context.Context, _ int) (int, error) { return answers(1, c.took)(ctx) }))
			_, err := svc.Call(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, c.want, layer.Describe(svc).State.Get("delay"))
		}
	})
}

// The latencies of attempts that were canceled because the copy won must count. Otherwise
// only fast requests would count, and the quantile would decrease.
func TestHedgeQuantileCountsCanceledAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		var mu sync.Mutex
		latency := func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(1+rng.IntN(100)) * time.Millisecond
		}
		svc := layer.Hedge[int, int](layer.HedgePolicy[int]{
			Quantile: 0.5, MinSamples: 20,
		})(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
			return answers(1, latency())(ctx)
		}))
		for range 5000 {
			_, err := svc.Call(t.Context(), 0)
			require.NoError(t, err)
		}
		require.Greater(t, hedgeNode(svc)[1], int64(50), "copies have won")
		require.InDelta(t, 50*time.Millisecond, layer.Describe(svc).State.Get("delay"), float64(5*time.Millisecond))
	})
}

func TestHedgeQuantileIgnoresFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errFirst }))
		for range 10 {
			_, err := svc.Call(t.Context(), 0)
			require.Equal(t, errFirst, err)
		}
		require.Nil(t, layer.Describe(svc).State.Get("delay"))
	})
}

func TestHedgeIdempotentOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		policy := after[int](time.Second)
		policy.HedgeIf = func(req int) bool { return req == 0 }
		svc := layer.Hedge[int, int](policy)(script{answers(1, time.Hour), answers(2, time.Hour), answers(3, 0)}.service(&calls))
		got, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 1, got)
		got, err = svc.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, 3, got)
	})
}

func TestHedgeCanceledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		var causes sync.Map
		wait := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			causes.Store(calls.Load(), context.Cause(ctx))
			calls.Add(10)
			return 0, context.Cause(ctx)
		}
		svc := layer.Hedge[int, int](after[int](time.Second))(script{wait, wait}.service(&calls))
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			time.Sleep(3 * time.Second)
			cancel(gone)
		}()
		start := time.Now()
		_, err := svc.Call(ctx, 1)
		require.ErrorIs(t, err, gone)
		require.NotErrorIs(t, err, layer.ErrNotReady)
		require.Equal(t, 3*time.Second, time.Since(start))
		synctest.Wait()
		causes.Range(func(_, cause any) bool { require.Equal(t, gone, cause); return true })
		require.EqualValues(t, 22, calls.Load())
	})
}

func TestHedgeLoser(t *testing.T) {
	for _, winner := range []int64{1, 2} {
		t.Run(fmt.Sprint(winner), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				var late closable
				var cause error
				svc := layer.Hedge[int, *response](after[int](time.Second))(
					layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
						if n.Add(1) == winner {
							time.Sleep(3 * time.Second)
							return bodyOf("won"), nil
						}
						<-ctx.Done()
						cause = context.Cause(ctx)
						time.Sleep(time.Second) // and it sends something all the same
						return &response{Body: &late}, nil
					}))
				rsp, err := svc.Call(t.Context(), 1)
				require.NoError(t, err)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				data, err := io.ReadAll(rsp.Body)
				require.NoError(t, err)
				require.Equal(t, "won", string(data))
				require.EqualError(t, cause, "another copy of the request was answered first")
				require.EqualValues(t, 1, late.closes.Load())
			})
		})
	}
}

type closable struct{ closes atomic.Int64 }

func (c *closable) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closable) Close() error             { c.closes.Add(1); return nil }

// A panic of the first attempt reaches the caller. A panic of the copy, which runs on a
// goroutine of the library, is a failure of the copy.
func TestHedgePanics(t *testing.T) {
	boom := func(d time.Duration) func(context.Context) (int, error) {
		return func(context.Context) (int, error) {
			time.Sleep(d)
			panic(errFirst)
		}
	}
	const s = time.Second
	for name, c := range map[string]script{
		"of the first":                    {boom(s / 2)},
		"of the first, the copy out":      {boom(2 * s), answers(2, 9*s)},
		"of the first, the copy panicked": {boom(3 * s), boom(s)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				svc := layer.Hedge[int, int](after[int](s))(c.service(&calls))
				require.PanicsWithValue(t, errFirst, func() { _, _ = svc.Call(t.Context(), 7) })
				time.Sleep(time.Minute)
			})
		})
	}
	for name, c := range map[string]struct {
		script
		err bool
	}{
		"of the copy, the first succeeds": {script{answers(1, 9*s), boom(s)}, false},
		"of the copy, the first rejected": {script{fails(layer.ErrNotReady, 2*s), boom(2 * s)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				svc := layer.Hedge[int, int](after[int](s))(c.service(&calls))
				_, err := svc.Call(t.Context(), 7)
				if !c.err {
					require.NoError(t, err)
					return
				}
				var panicked *layer.PanicError
				require.ErrorAs(t, err, &panicked)
				require.Equal(t, errFirst, panicked.Value)
			})
		})
	}
	t.Run("not of one that has lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			svc := layer.Hedge[int, int](after[int](s))(script{answers(1, 2*s), boom(3 * s)}.service(&calls))
			got, err := svc.Call(t.Context(), 7)
			require.NoError(t, err)
			require.Equal(t, 1, got)
			time.Sleep(time.Minute)
		})
	})
}

func TestHedgeGoexit(t *testing.T) {
	exit := func(context.Context) (int, error) { runtime.Goexit(); return 0, nil }
	for name, c := range map[string]script{
		"of the first":                  {exit},
		"of the first, the copy exited": {func(context.Context) (int, error) { time.Sleep(2 * time.Second); return exit(nil) }, exit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				svc := layer.Hedge[int, int](after[int](time.Second))(c.service(&calls))
				done, returned := make(chan struct{}), false
				go func() {
					defer close(done)
					_, _ = svc.Call(t.Context(), 7)
					returned = true
				}()
				<-done
				require.False(t, returned)
			})
		})
	}
}

func TestHedgeAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		svc := layer.Hedge[int, int](after[int](time.Second))(
			layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
				tries := layer.AttemptsFromContext(ctx)
				tries.Add(n.Add(1))
				if n.Load()%2 == 0 {
					return tries.Len(), nil
				}
				return answers(0, time.Minute)(ctx)
			}))
		got, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 2, got, "the copy sees where the first has been")

		time.Sleep(2 * time.Second) // for the budget
		var above layer.Attempts
		above.Add("elsewhere")
		got, err = svc.Call(layer.WithAttempts(t.Context(), &above), 1)
		require.NoError(t, err)
		require.Equal(t, 3, got)
		require.Equal(t, 3, above.Len(), "a layer above sees where they have been")
	})
}

type hedgeCounts struct {
	mu *sync.Mutex
	n  map[string]float64
	of string
}

func (c hedgeCounts) With(labels ...string) metrics.Counter {
	c.of = strings.Join(labels, "=")
	return c
}

func (c hedgeCounts) Add(delta float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[c.of] += delta
}

func TestHedgeDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		counts := hedgeCounts{mu: new(sync.Mutex), n: map[string]float64{}}
		var balance gauge
		budget := layer.NewBudget(10*time.Second, -1, 1) // ten, and no more
		policy := after[int](time.Second)
		policy.Budget = budget
		svc := layer.Hedge[int](policy, layer.WithMetrics[int](layer.Instruments{Hedges: counts, Budget: &balance}))(
			script{answers(1, 9*time.Second), answers(2, 0), answers(1, 2*time.Second), fails(layer.ErrNotReady, 0)}.service(&calls))
		require.Equal(t, "hedge      delay=1s budget=1 sent=0 won=0 skipped=0\nlayer.Func\n", layer.Describe(svc).String())
		for range 2 {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
		}
		require.Equal(t, map[string]float64{"outcome=sent": 1, "outcome=won": 1, "outcome=skipped": 1}, counts.n)
		require.EqualValues(t, 9, balance)
		require.Equal(t, "hedge      delay=1s budget=1 sent=1 won=1 skipped=1\nlayer.Func\n", layer.Describe(svc).String())
	})
	svc := layer.Hedge[int, int](layer.HedgePolicy[int]{MaxDelay: time.Second})(layer.Func[int, int](echo))
	require.Equal(t, "hedge      quantile=0.95 max=1s budget=1 sent=0 won=0 skipped=0\nlayer.Func\n", layer.Describe(svc).String())
}

func TestHedgePolicyValidate(t *testing.T) {
	require.NoError(t, layer.HedgePolicy[int]{}.Validate())
	require.NoError(t, after[int](time.Second).Validate())
	for field, p := range map[string]layer.HedgePolicy[int]{
		"Quantile is 1,":   {Quantile: 1},
		"Quantile is -1,":  {Quantile: -1},
		"MinSamples is -1": {MinSamples: -1},
		"MinDelay is -1ns": {MinDelay: -1},
		"MaxDelay is 1s":   {MinDelay: time.Minute, MaxDelay: time.Second},
		"MaxDelay is -1ns": {MaxDelay: -1},
	} {
		require.ErrorContains(t, p.Validate(), field)
	}
}

func TestHedgeWithoutCopyGoroutines(t *testing.T) {
	svc := layer.Hedge[int, int](after[int](time.Hour))(layer.Func[int, int](func(context.Context, int) (int, error) {
		return runtime.NumGoroutine(), nil
	}))
	before := runtime.NumGoroutine()
	for range 100 {
		during, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, during, before)
	}
}

func TestHedgeExplains(t *testing.T) {
	for want, perSecond := range map[string]int{
		"hedge      target=web:80 after=100ms budget=0\n":                   1,
		"hedge      target=web:80 after=100ms skipped=no budget budget=0\n": -1,
	} {
		synctest.Test(t, func(t *testing.T) {
			budget := layer.NewBudget(0, -1, perSecond)
			policy := layer.HedgePolicy[int]{Budget: budget, MinDelay: 100 * time.Millisecond, MaxDelay: 100 * time.Millisecond}
			svc := layer.Hedge(policy, layer.WithTarget[int]("web:80"))(layer.Func[int, int](
				func(ctx context.Context, req int) (int, error) {
					select {
					case <-ctx.Done():
						return 0, ctx.Err()
					case <-time.After(time.Second):
						return req, nil
					}
				}))
			ctx, why := layer.Explain(t.Context())
			_, err := svc.Call(ctx, 1)
			require.NoError(t, err)
			assert.Equal(t, want, why.String())
		})
	}
}

// wire is a body like that of a transport. A Read fails when the context of the request has
// ended, even if bytes are buffered.
type wire struct {
	ctx    context.Context
	left   int
	closes *atomic.Int64
}

func (w *wire) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	if w.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), w.left, 4096)
	w.left -= n
	return n, nil
}

func (w *wire) Close() error { w.closes.Add(1); return nil }

// cristalhq/hedgedhttp#7, failsafe-go/failsafe-go#65 (under a retry) and
// go-resty/resty#1197: the context of the winner was canceled with that of the loser. Only
// 3 965 of 512 K bytes of its body could be read.
func TestHedgeWinnerBody(t *testing.T) {
	const size = 512 << 10
	for _, winner := range []int64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var n, closes atomic.Int64
			var ctxs sync.Map
			svc := layer.NewStack[int, *response]().
				With("retry", layer.Retry[int, *response](layer.RetryPolicy[int, *response]{})).
				With("hedge", layer.Hedge[int, *response](after[int](time.Second))).
				Service(layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
					i := n.Add(1)
					ctxs.Store(i, ctx)
					wait := 10 * time.Second
					if i == winner {
						wait = 2 * time.Second
					}
					_, err := answers(0, wait)(ctx)
					return &response{Body: &wire{ctx, size, &closes}}, err
				}))
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Minute) // it is read late
			winning, _ := ctxs.Load(winner)
			losing, _ := ctxs.Load(3 - winner)
			require.NoError(t, winning.(context.Context).Err())
			require.ErrorIs(t, losing.(context.Context).Err(), context.Canceled)

			read, err := io.Copy(io.Discard, rsp.Body)
			require.NoError(t, err)
			require.EqualValues(t, size, read)
			require.NoError(t, rsp.Body.Close())
			require.EqualValues(t, 1, closes.Load())
			require.Error(t, winning.(context.Context).Err(), "let go with the body")
		})
	}
}

// failsafe-go/failsafe-go#141: without a budget for the copy, the first attempt was
// canceled as well.
func TestHedgeWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := after[int](time.Second)
		policy.Budget = layer.NewBudget(0, -1, -1)
		var calls atomic.Int64
		svc := layer.Hedge[int, int](policy)(script{answers(1, time.Minute)}.service(&calls))
		got, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 1, got)
		require.Equal(t, [3]int64{0, 0, 1}, hedgeNode(svc))
	})
}

type upload struct {
	Method  string
	Body    io.ReadCloser
	GetBody func() (io.ReadCloser, error)
}

// uploads makes requests with bodies that can be made again, and records the bodies.
type uploads struct {
	text   string
	bodies []*source // the first one is that of the request
}

func (u *uploads) get() (io.ReadCloser, error) {
	u.bodies = append(u.bodies, &source{Reader: strings.NewReader(u.text)})
	return u.bodies[len(u.bodies)-1], nil
}

func (u *uploads) request(method string) *upload {
	body, _ := u.get()
	return &upload{method, body, u.get}
}

// source is a request body that counts its ends.
type source struct {
	io.Reader
	closes atomic.Int64
}

func (s *source) Close() error { s.closes.Add(1); return nil }

// go-resty/resty#1211: both attempts read from one body, and each got a part of it.
func TestHedgeSeparateRequestBodies(t *testing.T) {
	content := strings.Repeat("content of the upload ", 100)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		var bodies atomic.Int64
		svc := layer.Hedge[*upload, int](after[*upload](time.Second))(
			layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
				defer req.Body.Close()
				data, err := io.ReadAll(req.Body)
				if bodies.Add(1) == 1 {
					time.Sleep(2 * time.Second)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, string(data))
				return int(bodies.Load()), err
			}))
		for _, method := range []string{"PUT", "POST"} {
			got = nil
			bodies.Store(0)
			kept := &source{Reader: strings.NewReader(content)}
			_, err := svc.Call(t.Context(), &upload{method, kept, nil})
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.EqualValues(t, 1, kept.closes.Load())
			if method == "PUT" {
				require.Equal(t, []string{content, content}, got)
			} else {
				require.Equal(t, []string{content}, got, "a POST is not sent twice")
			}
		}
	})
}

func TestHedgeLargeRequestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := after[*upload](time.Second)
		policy.MaxBodyBytes = 10
		svc := layer.Hedge[*upload, int](policy)(
			layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
				data, err := io.ReadAll(req.Body)
				time.Sleep(time.Minute)
				return len(data), errors.Join(err, req.Body.Close())
			}))
		body := &source{Reader: strings.NewReader(strings.Repeat("x", 5000))}
		n, err := svc.Call(t.Context(), &upload{"PUT", body, nil})
		require.NoError(t, err)
		require.Equal(t, 5000, n)
		require.Equal(t, [3]int64{0, 0, 1}, hedgeNode(svc))
		require.EqualValues(t, 1, body.closes.Load())
	})
}

// A service closes the body of a request that it takes. The body of a rejected
// request stays open, unless another attempt was sent.
func TestHedgeRequestBodies(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		first, second error
		closes        int64
	}{
		"both taken":      {nil, nil, 1},
		"copy rejected":   {nil, layer.ErrNotReady, 1},
		"first rejected":  {layer.ErrNotReady, nil, 1},
		"first, 2nd fail": {layer.ErrNotReady, errSecond, 1},
		"both rejected":   {layer.ErrNotReady, layer.ErrNotReady, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				svc := layer.Hedge[*upload, int](after[*upload](s))(
					layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
						err := c.first
						if n.Add(1) == 1 {
							time.Sleep(2 * s)
						} else {
							err = c.second
						}
						if !errors.Is(err, layer.ErrNotReady) {
							_, _ = io.ReadAll(req.Body)
							_ = req.Body.Close()
						}
						return 1, err
					}))
				sent := &uploads{text: "x"}
				_, err := svc.Call(t.Context(), sent.request("PUT"))
				require.Equal(t, c.closes == 0, errors.Is(err, layer.ErrNotReady))
				time.Sleep(time.Minute)
				require.Len(t, sent.bodies, 2)
				require.Equal(t, c.closes > 0, sent.bodies[0].closes.Load() > 0)
				require.Positive(t, sent.bodies[1].closes.Load())
			})
		})
	}
}

// An attempt that fails without being sent leaves its body open, and the hedge
// closes it.
func TestHedgeClosesUnsentBody(t *testing.T) {
	const s = time.Second
	take := func(ctx context.Context, d time.Duration, req *upload) (int, error) {
		_, _ = io.ReadAll(req.Body)
		defer req.Body.Close()
		return answers(1, d)(ctx)
	}
	leave := func(ctx context.Context, d time.Duration, _ *upload) (int, error) { return fails(errFirst, d)(ctx) }
	late := func(_ context.Context, d time.Duration, _ *upload) (int, error) {
		time.Sleep(d) // and ignores its context
		return 0, errFirst
	}
	panics := func(_ context.Context, d time.Duration, _ *upload) (int, error) {
		time.Sleep(d)
		panic(errSecond)
	}
	takesAndPanics := func(_ context.Context, d time.Duration, req *upload) (int, error) {
		_ = req.Body.Close()
		return panics(nil, d, nil)
	}
	type leg func(context.Context, time.Duration, *upload) (int, error)
	for name, c := range map[string]struct {
		first, second leg
		took          [2]time.Duration
		fails, panics bool
	}{
		"the first, lost":               {leave, take, [2]time.Duration{10 * s, s}, false, false},
		"the first, failed":             {leave, take, [2]time.Duration{2 * s, 3 * s}, false, false},
		"the copy, lost":                {take, leave, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, lost, later":         {take, late, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, lost, panics":        {take, panics, [2]time.Duration{3 * s, 10 * s}, false, false},
		"the copy, failed":              {take, leave, [2]time.Duration{3 * s, s}, false, false},
		"the copy, the first panics":    {takesAndPanics, leave, [2]time.Duration{3 * s, s}, false, true},
		"the copy, as the first panics": {takesAndPanics, late, [2]time.Duration{3 * s, 10 * s}, false, true},
		"the copy, which panics":        {take, panics, [2]time.Duration{10 * s, s}, false, false},
		"the copy, both panic":          {takesAndPanics, panics, [2]time.Duration{3 * s, s}, false, true},
		"both":                          {leave, leave, [2]time.Duration{3 * s, s}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				svc := layer.Hedge[*upload, int](after[*upload](s))(
					layer.Func[*upload, int](func(ctx context.Context, req *upload) (int, error) {
						if n.Add(1) == 1 {
							return c.first(ctx, c.took[0], req)
						}
						return c.second(ctx, c.took[1], req)
					}))
				sent := &uploads{text: "x"}
				var err error
				call := func() { _, err = svc.Call(t.Context(), sent.request("PUT")) }
				if c.panics {
					require.PanicsWithValue(t, errSecond, call)
				} else {
					call()
				}
				if c.fails {
					require.ErrorIs(t, err, errFirst)
					_ = sent.bodies[0].Close() // as the caller does
				} else {
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				require.EqualValues(t, 2, n.Load())
				for _, body := range sent.bodies {
					require.Positive(t, body.closes.Load())
				}
			})
		})
	}
}

// A copy that fails before the first attempt has a response leaves no body or context open.
func TestHedgeFailedCopy(t *testing.T) {
	for name, first := range map[string]func() (*breakerReply, error){
		"well":   func() (*breakerReply, error) { return &breakerReply{Status: 200}, nil },
		"badly":  func() (*breakerReply, error) { return &breakerReply{Status: 500}, nil },
		"panics": func() (*breakerReply, error) { panic(errFirst) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failed := newFallbackBody("it failed")
				var n atomic.Int64
				svc := layer.Hedge[int, *breakerReply](after[int](time.Second), layer.WithClassifier(breakerStatus))(
					layer.Func[int, *breakerReply](func(context.Context, int) (*breakerReply, error) {
						if n.Add(1) > 1 {
							return &breakerReply{500, failed}, nil
						}
						time.Sleep(3 * time.Second)
						return first()
					}))
				func() {
					defer func() { _ = recover() }()
					_, err := svc.Call(t.Context(), 1)
					require.NoError(t, err)
				}()
				require.EqualValues(t, 2, n.Load())
				require.EqualValues(t, 1, failed.closed.Load())
			})
		})
	}
}

// moonrhythm/parapet#223: retries and hedges that multiply.
func TestHedgeUnderRetry(t *testing.T) {
	const (
		requests = 1000
		ratio    = 0.2
		reserve  = 10 * 1 // in ten seconds
	)
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(10*time.Second, ratio, 1)
		policy := after[int](10 * time.Millisecond)
		policy.Budget = budget
		var calls atomic.Int64
		again := layer.WithClassifier(func(layer.Outcome[int]) layer.Class { return layer.Retryable })
		storm := layer.NewStack[int, int]().
			With("retry", layer.Retry(layer.RetryPolicy[int, int]{Budget: budget, MaxAttempts: 5}, again)).
			With("hedge", layer.Hedge(policy, again)).
			Service(layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
				calls.Add(1)
				if req%2 == 0 { // too soon for a copy
					return fails(errFirst, 5*time.Millisecond)(ctx)
				}
				return fails(errFirst, 20*time.Millisecond)(ctx)
			}))
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				_, err := storm.Call(t.Context(), i)
				assert.ErrorIs(t, err, errFirst)
			})
			time.Sleep(9 * time.Millisecond)
		}
		wg.Wait()
		require.LessOrEqual(t, calls.Load(), int64(requests*(1+ratio)+reserve))
		require.Greater(t, calls.Load(), int64(requests*1.1), "there were retries and hedges")
		hedges := layer.Describe(storm).Next.State.Get("sent").(int64)
		retries := layer.Describe(storm).State.Get("retries").(int64)
		require.Equal(t, calls.Load(), requests+hedges+retries)
		require.Positive(t, hedges)
		require.Positive(t, retries)
	})
}

// With a budget of its own, a hedge deposits into it, also below a retry.
func TestHedgeDepositsOnce(t *testing.T) {
	for name, retry := range map[string]layer.RetryPolicy[int, int]{
		"shared": {Budget: layer.NewBudget(time.Minute, 1, -1)},
		"own":    {Budget: layer.NewBudget(time.Minute, 1, -1)},
		"alone":  {MaxAttempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := after[int](time.Hour)
				policy.Budget = layer.NewBudget(time.Minute, 1, -1)
				if name == "shared" {
					retry.Budget = policy.Budget
				}
				svc := layer.Retry[int, int](retry)(layer.Hedge[int, int](policy)(layer.Func[int, int](echo)))
				for range 16 {
					_, err := svc.Call(t.Context(), 1)
					require.NoError(t, err)
				}
				require.Equal(t, 16, policy.Budget.Balance())
			})
		})
	}
}

// The caller gets one response, every response is closed, every context ends, and at
// most one copy is sent for each request.
func TestHedgeStorm(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(n)
			}
			var ctxs []context.Context
			var opened int64
			var closes atomic.Int64
			policy := after[int](5 * time.Millisecond)
			policy.Budget = layer.NewBudget(time.Second, 10, 1000)
			svc := layer.Hedge[int, *response](policy)(layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				mu.Lock()
				ctxs = append(ctxs, ctx)
				mu.Unlock()
				time.Sleep(time.Duration(draw(20)) * time.Millisecond)
				switch draw(6) {
				case 0:
					return nil, errFirst
				case 1:
					return nil, layer.ErrNotReady
				case 2:
					panic(errSecond)
				}
				mu.Lock()
				opened++
				mu.Unlock()
				return &response{Body: &wire{ctx, 10, &closes}}, nil
			}))
			const requests = 50
			var wg sync.WaitGroup
			for range requests {
				wg.Go(func() {
					defer func() {
						if p := recover(); p != nil {
							assert.Equal(t, errSecond, p)
						}
					}()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if draw(4) == 0 {
						patience := time.Duration(draw(20)) * time.Millisecond
						go func() {
							time.Sleep(patience)
							cancel()
						}()
					}
					rsp, err := svc.Call(ctx, 1)
					if err != nil {
						return
					}
					time.Sleep(time.Duration(draw(5)) * time.Millisecond)
					_, err = io.ReadAll(rsp.Body)
					assert.True(t, err == nil || ctx.Err() != nil, err)
					_ = rsp.Body.Close()
				})
			}
			wg.Wait()
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, opened, closes.Load(), "a response was left open, or closed twice")
			assert.LessOrEqual(t, len(ctxs), 2*requests)
			for _, ctx := range ctxs {
				assert.Error(t, ctx.Err())
			}
		})
	}
}

// slowPool is a service of 16 endpoints. Each endpoint serves one request at a time to its
// end, even if the request is canceled. A request goes to the shorter of two queues.
type slowPool struct {
	mu     sync.Mutex
	rng    *rand.Rand
	queued [16]int
	served [16]chan struct{}
	took   func(rng *rand.Rand) time.Duration
}

func newSlowPool(seed uint64, took func(rng *rand.Rand) time.Duration) *slowPool {
	p := &slowPool{rng: rand.New(rand.NewPCG(seed, 1)), took: took}
	for i := range p.served {
		p.served[i] = make(chan struct{}, 1)
	}
	return p
}

func (p *slowPool) Ready(context.Context) error { return nil }

func (p *slowPool) Call(ctx context.Context, n int) (int, error) {
	p.mu.Lock()
	i, j := p.rng.IntN(len(p.queued)), p.rng.IntN(len(p.queued))
	if p.queued[j] < p.queued[i] {
		i = j
	}
	p.queued[i]++
	took := p.took(p.rng)
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.served[i] <- struct{}{}
		time.Sleep(took)
		<-p.served[i]
		p.mu.Lock()
		p.queued[i]--
		p.mu.Unlock()
	}()
	select {
	case <-done:
		return n, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// slowP99 returns the p99 latency of the requests that start in a window of 4 s, which
// begins 30 s after the first request. took returns the service time of a request, in that
// window or outside of it.
func slowP99(t *testing.T, perSecond int, took func(rng *rand.Rand, slow bool) time.Duration, hedged bool) time.Duration {
	const warm, window = 30 * time.Second, 4 * time.Second
	var all []time.Duration
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			inWindow := func() bool { since := time.Since(start); return since >= warm && since < warm+window }
			var svc layer.Service[int, int] = newSlowPool(seed, func(rng *rand.Rand) time.Duration { return took(rng, inWindow()) })
			if hedged {
				svc = layer.Hedge[int, int](layer.HedgePolicy[int]{})(svc)
			}
			var mu sync.Mutex
			var wg sync.WaitGroup
			rng := rand.New(rand.NewPCG(seed, 2))
			for time.Since(start) < warm+window {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / float64(perSecond)))
				wg.Go(func() {
					began, counts := time.Now(), inWindow()
					_, err := svc.Call(t.Context(), 1)
					mu.Lock()
					defer mu.Unlock()
					if counts && err == nil {
						all = append(all, time.Since(began))
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Minute) // copies that were cancelled are still served
		})
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// Hedging must not increase the latency if all endpoints are slow. If slow requests are
// random, it must reduce the tail latency.
func TestHedgeSlowEndpoints(t *testing.T) {
	together := func(rng *rand.Rand, slow bool) time.Duration {
		mean := 10 * time.Millisecond
		if slow {
			mean *= 2
		}
		return time.Duration(rng.ExpFloat64() * float64(mean))
	}
	alone := func(rng *rand.Rand, _ bool) time.Duration {
		if rng.IntN(50) == 0 {
			return 200 * time.Millisecond
		}
		return time.Duration(rng.ExpFloat64() * float64(5*time.Millisecond))
	}
	const perSecond = 560
	without, with := slowP99(t, perSecond, together, false), slowP99(t, perSecond, together, true)
	t.Logf("all twice as slow for 4 s: p99 %v, hedged %v", without, with)
	require.LessOrEqual(t, with, without*105/100)

	without, with = slowP99(t, 400, alone, false), slowP99(t, 400, alone, true)
	t.Logf("one request in 50 slow by itself: p99 %v, hedged %v", without, with)
	require.Less(t, with, without*2/3)
}
