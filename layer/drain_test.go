package layer_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

func TestDrainWaitsForBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := layer.NewDrainer()
		svc := layer.Drain[int, *response](d)(layer.Func[int, *response](func(context.Context, int) (*response, error) {
			return bodyOf("some words"), nil
		}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, d.InFlight())

		var done atomic.Bool
		go func() {
			assert.NoError(t, d.Drain(t.Context()))
			done.Store(true)
		}()
		synctest.Wait()
		require.False(t, done.Load(), "a body is open")
		require.True(t, d.Draining())

		_, err = svc.Call(t.Context(), 2)
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, svc.Ready(t.Context()), layer.ErrClosed)

		data, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, "some words", string(data), "what is open is not disturbed")
		synctest.Wait()
		require.True(t, done.Load())
		require.Zero(t, d.InFlight())
		require.NoError(t, d.Drain(t.Context()), "once more")
	})
}

func TestDrainContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := layer.NewDrainer()
		svc := layer.Drain[int, *response](d)(layer.Func[int, *response](func(context.Context, int) (*response, error) {
			return bodyOf("x"), nil
		}))
		a, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		b, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)

		late := errors.New("the grace period is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, late)
		defer cancel()
		err = d.Drain(ctx)
		require.ErrorIs(t, err, late)
		var where *layer.Error
		require.ErrorAs(t, err, &where)
		require.Equal(t, 5*time.Second, where.Waited)
		require.Contains(t, err.Error(), "2 requests are still open")
		require.NotErrorIs(t, err, layer.ErrNotReady, "it is no rejection")

		require.ErrorIs(t, d.Drain(ctx), late, "a done ctx does not wait")
		require.NoError(t, a.Body.Close())
		require.NoError(t, b.Body.Close())
		require.NoError(t, d.Drain(ctx), "and finds out that all is over")
	})
}

func TestDrainConcurrentStacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := layer.NewDrainer()
		hold := make(chan struct{})
		inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { <-hold; return req, nil })
		l := layer.Drain[int, int](d)
		stacks := []layer.Service[int, int]{l(inner), l(inner), layer.Drain[int, int](d)(inner)}
		var wg sync.WaitGroup
		for i, svc := range stacks {
			wg.Go(func() {
				got, err := svc.Call(t.Context(), i)
				assert.NoError(t, err)
				assert.Equal(t, i, got)
			})
		}
		synctest.Wait()
		var done atomic.Int64
		for range 3 {
			wg.Go(func() {
				assert.NoError(t, d.Drain(t.Context()))
				done.Add(1)
			})
		}
		synctest.Wait()
		require.Zero(t, done.Load())
		require.EqualValues(t, 3, d.InFlight())
		for _, svc := range stacks {
			require.ErrorIs(t, layer.Poll(svc), layer.ErrClosed)
		}
		close(hold)
		wg.Wait()
		require.EqualValues(t, 3, done.Load())
	})
}

// If reading the state and counting a request were two steps, a request could start between
// them. sync.WaitGroup forbids such an Add that races with a Wait at zero.
func TestDrainCountsRequestsThatRaceWithStart(t *testing.T) {
	for round := range 30_000 {
		d := layer.NewDrainer()
		var over, violated atomic.Bool
		svc := layer.Drain[int, int](d)(layer.Func[int, int](func(context.Context, int) (int, error) {
			for range 200 { // long enough for Drain to return meanwhile, if it does
				if over.Load() {
					violated.Store(true)
				}
			}
			return 0, nil
		}))
		var wg sync.WaitGroup
		var began atomic.Int64
		// begin returns at the same time in both goroutines, except for a delay that varies.
		begin := func(delay int) {
			for began.Add(1); began.Load() < 2; {
				runtime.Gosched()
			}
			for range delay {
				began.Load()
			}
		}
		wg.Go(func() {
			begin(round % 20)
			if _, err := svc.Call(t.Context(), 0); err != nil {
				assert.ErrorIs(t, err, layer.ErrClosed)
			}
		})
		begin(round / 20 % 20)
		require.NoError(t, d.Drain(t.Context()))
		over.Store(true)
		wg.Wait()
		require.False(t, violated.Load(), "a request is inside though Drain has returned")
		require.Zero(t, d.InFlight())
	}
}

// drainsInReady is a service that starts draining in its Ready.
type drainsInReady struct {
	layer.Service[int, int]
	d *layer.Drainer
}

func (s drainsInReady) Ready(ctx context.Context) error { return s.d.Drain(ctx) }

func TestDrainDuringReady(t *testing.T) {
	d := layer.NewDrainer()
	svc := layer.Drain[int, int](d)(drainsInReady{layer.Func[int, int](echo), d})
	require.ErrorIs(t, svc.Ready(t.Context()), layer.ErrClosed)
}

func TestDrainWakesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := layer.NewDrainer()
		svc := layer.NewStack[int, int]().With("drain", layer.Drain[int, int](d)).Limit(0).
			Service(layer.Func[int, int](echo))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		waits := make(chan error, 2)
		go func() { waits <- svc.Ready(t.Context()) }()
		synctest.Wait()
		require.NoError(t, d.Drain(t.Context()))
		require.ErrorIs(t, <-waits, layer.ErrClosed)

		other := layer.NewStack[int, int]().With("drain", layer.Drain[int, int](layer.NewDrainer())).Limit(0).
			Service(layer.Func[int, int](echo))
		go func() { waits <- other.Ready(ctx) }()
		synctest.Wait()
		gone := errors.New("gone")
		cancel(gone)
		require.ErrorIs(t, <-waits, gone)
	})
}

// The service below may be shared with other stacks. Ending a wait for it must not
// close it for them.
func TestDrainSharedService(t *testing.T) {
	full := func() layer.Service[int, *response] {
		return layer.Limit[int, *response](1)(layer.Func[int, *response](func(context.Context, int) (*response, error) {
			return bodyOf("x"), nil
		}))
	}
	for name, share := range map[string]func(ctx context.Context, made *atomic.Int64) layer.Service[int, *response]{
		"reconnect": func(ctx context.Context, made *atomic.Int64) layer.Service[int, *response] {
			return layer.Reconnect(ctx, func(context.Context) (layer.Service[int, *response], error) {
				made.Add(1)
				return full(), nil
			}, layer.Backoff{})
		},
		"cache": func(ctx context.Context, made *atomic.Int64) layer.Service[int, *response] {
			return layer.NewCache(ctx, func(context.Context, string) layer.Service[int, *response] {
				made.Add(1)
				return full()
			}, layer.CachePolicy{IdleTimeout: time.Second}).Service("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var made atomic.Int64
				shared := share(ctx, &made)
				require.NoError(t, shared.Ready(ctx))
				rsp, err := shared.Call(ctx, 1)
				require.NoError(t, err)
				defer func() { require.NoError(t, rsp.Body.Close()) }()

				d := layer.NewDrainer()
				waits := make(chan error, 1)
				go func() { waits <- layer.Drain[int, *response](d)(shared).Ready(ctx) }()
				synctest.Wait()
				require.NoError(t, d.Drain(ctx), "no request came through it")
				require.ErrorIs(t, <-waits, layer.ErrClosed)

				time.Sleep(3 * time.Second) // several sweeps of the cache
				_, err = shared.Call(ctx, 2)
				require.ErrorIs(t, err, layer.ErrNotReady, "its one place is taken")
				require.EqualValues(t, 1, made.Load())
			})
		})
	}
}

func TestDrainPanicsAndFailures(t *testing.T) {
	d := layer.NewDrainer()
	boom := errors.New("boom")
	svc := layer.Drain[string, int](d)(layer.Func[string, int](func(_ context.Context, how string) (int, error) {
		switch how {
		case "error":
			return 0, boom
		case "panic":
			panic(how)
		}
		runtime.Goexit()
		return 0, nil
	}))
	_, err := svc.Call(t.Context(), "error")
	require.Equal(t, boom, err)
	require.PanicsWithValue(t, "panic", func() { _, _ = svc.Call(t.Context(), "panic") })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = svc.Call(t.Context(), "goexit")
	}()
	<-done
	require.Zero(t, d.InFlight())
	require.NoError(t, d.Drain(t.Context()))
}

func TestDrainRejectsCanceledCaller(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	svc := layer.Drain[int, int](layer.NewDrainer())(layer.Func[int, int](echo))
	_, err := svc.Call(ctx, 1)
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NotErrorIs(t, err, layer.ErrClosed)
	require.NoError(t, layer.Poll(svc))
}

func TestDrainDescribe(t *testing.T) {
	rejected := byLabel{}
	d := layer.NewDrainer()
	svc := layer.Drain[int](d, layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}), layer.WithTarget[int]("web"))(layer.Func[int, int](echo))
	require.Equal(t, "drain      in_flight=0 draining=false rejected=0\nlayer.Func\n", layer.Describe(svc).String())
	require.NoError(t, d.Drain(t.Context()))
	_, err := svc.Call(t.Context(), 1)
	require.EqualError(t, err, "drain web: closed: no new requests while it drains")
	require.Equal(t, "drain      in_flight=0 draining=true rejected=1\nlayer.Func\n", layer.Describe(svc).String())
	require.EqualValues(t, 1, *rejected["drain"])
}

// The model: requests start and end and are counted. When draining has started, no request
// starts.
func TestDrainModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := layer.NewDrainer()
		svc := layer.Drain[int, *response](d)(layer.Func[int, *response](func(context.Context, int) (*response, error) {
			return bodyOf("x"), nil
		}))
		done, cancel := context.WithCancel(context.Background())
		cancel()
		var open []*response
		draining := false
		t.Repeat(map[string]func(*rapid.T){
			"call": func(t *rapid.T) {
				rsp, err := svc.Call(context.Background(), 1)
				if draining {
					require.ErrorIs(t, err, layer.ErrClosed)
					return
				}
				require.NoError(t, err)
				open = append(open, rsp)
			},
			"end": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				require.NoError(t, open[i].Body.Close())
				open = append(open[:i], open[i+1:]...)
			},
			"drain": func(t *rapid.T) {
				draining = true
				err := d.Drain(done)
				require.Equal(t, len(open) == 0, err == nil)
			},
			"": func(t *rapid.T) {
				require.EqualValues(t, len(open), d.InFlight())
				require.Equal(t, draining, d.Draining())
				require.Equal(t, draining, errors.Is(layer.Poll(svc), layer.ErrClosed))
			},
		})
	})
}
