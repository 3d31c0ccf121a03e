package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
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
			Quantile: 0.5, MinSamples: 20, Budget: layer.NewBudget(time.Second, 10, 1_000_000),
		})(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
			return answers(1, latency())(ctx)
		}))
		for range 5000 {
			_, err := svc.Call(t.Context(), 0)
			require.NoError(t, err)
		}
		require.Greater(t, hedgeNode(svc)[1], int64(500), "copies have won")
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
		require.Equal(t, "hedge      delay=1s budget=10 sent=0 won=0 skipped=0\nlayer.Func\n", layer.Describe(svc).String())
		for range 2 {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
		}
		require.Equal(t, map[string]float64{"outcome=sent": 1, "outcome=won": 1, "outcome=skipped": 1}, counts.n)
		require.EqualValues(t, 8, balance)
		require.Equal(t, "hedge      delay=1s budget=8 sent=1 won=1 skipped=1\nlayer.Func\n", layer.Describe(svc).String())
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
