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
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// cacheKept is a service that a cache under test made for a key.
type cacheKept struct {
	ctx   context.Context
	key   string
	ready func(context.Context) error
	serve func(context.Context) (*cacheResponse, error)
}

func (k *cacheKept) Ready(ctx context.Context) error {
	if k.ready != nil {
		return k.ready(ctx)
	}
	return nil
}

func (k *cacheKept) Call(ctx context.Context, req string) (*cacheResponse, error) {
	if k.serve != nil {
		return k.serve(ctx)
	}
	return cacheBody(k.key + req), nil
}

// cacheMaker makes the services of a cache and counts them.
type cacheMaker struct {
	mu   sync.Mutex
	made map[string][]*cacheKept
	on   func(key string)
}

func (m *cacheMaker) Make(ctx context.Context, key string) cacheService {
	if m.on != nil {
		m.on(key)
	}
	k := &cacheKept{ctx: ctx, key: key}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made[key] = append(m.made[key], k)
	return k
}

func (m *cacheMaker) of(key string) []*cacheKept {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made[key]
}

// cacheResponse has a body, and ends with the body.
type cacheResponse struct{ Body io.ReadCloser }

func cacheBody(text string) *cacheResponse {
	return &cacheResponse{Body: io.NopCloser(strings.NewReader(text))}
}

type (
	cacheService = layer.Service[string, *cacheResponse]
	cacheOf      = layer.Cache[string, string, *cacheResponse]
)

func inCache(t *testing.T, p layer.CachePolicy, f func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		m := &cacheMaker{made: make(map[string][]*cacheKept)}
		f(t, ctx, layer.NewCache(ctx, m.Make, p), m)
	})
}

// cacheUse calls svc and reads the response to its end.
func cacheUse(t assert.TestingT, ctx context.Context, svc cacheService, req string) string {
	rsp, err := svc.Call(ctx, req)
	if !assert.NoError(t, err) {
		return ""
	}
	text, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	return string(text)
}

func TestCacheServicePerKey(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		unused := c.Service("a")
		require.Empty(t, m.of("a"), "made on first use")
		for range 3 {
			require.Equal(t, "a1", cacheUse(t, ctx, unused, "1"))
			require.Equal(t, "a2", cacheUse(t, ctx, c.Service("a"), "2"))
			require.NoError(t, c.Service("b").Ready(ctx))
		}
		require.Len(t, m.of("a"), 1)
		require.Len(t, m.of("b"), 1)
	})
}

func TestCacheConcurrentFirstUse(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		slow := make(chan struct{})
		m.on = func(key string) {
			if key == "slow" {
				<-slow
			}
		}
		var served atomic.Int64
		for range 10 {
			go func() {
				assert.Equal(t, "slow1", cacheUse(t, ctx, c.Service("slow"), "1"))
				served.Add(1)
			}()
		}
		synctest.Wait()
		require.Equal(t, "other1", cacheUse(t, ctx, c.Service("other"), "1"), "one key never waits for another")

		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Service("slow").Call(short, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, c.Service("slow").Ready(short), context.DeadlineExceeded)
		require.ErrorIs(t, layer.Poll(c.Service("slow")), layer.ErrNotReady)

		close(slow)
		synctest.Wait()
		require.EqualValues(t, 10, served.Load())
		require.Len(t, m.of("slow"), 1)
	})
}

func TestCacheIdleTimeout(t *testing.T) {
	for _, idle := range []time.Duration{time.Minute, 10 * time.Second} {
		var p layer.CachePolicy
		if idle != time.Minute {
			p.IdleTimeout = idle
		}
		inCache(t, p, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
			svc := c.Service("a")
			for range 50 {
				cacheUse(t, ctx, svc, "")
				time.Sleep(idle * 9 / 10)
			}
			require.Len(t, m.of("a"), 1, "it was in use all the time")
			cacheUse(t, ctx, svc, "")
			time.Sleep(idle - time.Millisecond)
			require.NoError(t, m.of("a")[0].ctx.Err())
			require.Len(t, c.Describe().Children, 1)
			time.Sleep(idle/8 + time.Millisecond)
			synctest.Wait()
			require.Error(t, m.of("a")[0].ctx.Err())
			require.Empty(t, c.Describe().Children)
			require.EqualValues(t, 0, c.Describe().State.Get("keys"))

			require.Equal(t, "a1", cacheUse(t, ctx, svc, "1"), "a kept service makes a new one")
			require.Equal(t, "a1", cacheUse(t, ctx, c.Service("a"), "1"))
			require.Len(t, m.of("a"), 2)
		})
	}
}

func TestCacheKeepsUsedService(t *testing.T) {
	for name, hold := range map[string]func(t *testing.T, ctx context.Context, svc cacheService, k *cacheKept) (release func()){
		"a call": func(t *testing.T, ctx context.Context, svc cacheService, k *cacheKept) func() {
			wait := make(chan struct{})
			k.serve = func(context.Context) (*cacheResponse, error) { <-wait; return nil, io.ErrUnexpectedEOF }
			go func() { _, _ = svc.Call(ctx, "") }()
			return func() { close(wait) }
		},
		"a body": func(t *testing.T, ctx context.Context, svc cacheService, k *cacheKept) func() {
			rsp, err := svc.Call(ctx, "")
			require.NoError(t, err)
			return func() { _ = rsp.Body.Close() }
		},
		"an abandoned body": func(t *testing.T, ctx context.Context, svc cacheService, k *cacheKept) func() {
			ctx, cancel := context.WithCancel(ctx)
			_, err := svc.Call(ctx, "")
			require.NoError(t, err)
			return cancel
		},
		"a waiter in Ready": func(t *testing.T, ctx context.Context, svc cacheService, k *cacheKept) func() {
			wait := make(chan struct{})
			k.ready = func(context.Context) error { <-wait; return nil }
			go func() { assert.NoError(t, svc.Ready(ctx)) }()
			return func() { close(wait) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
				svc := c.Service("a")
				cacheUse(t, ctx, svc, "")
				release := hold(t, ctx, svc, m.of("a")[0])
				time.Sleep(time.Hour)
				require.NoError(t, m.of("a")[0].ctx.Err())
				release()
				time.Sleep(59 * time.Second)
				require.NoError(t, m.of("a")[0].ctx.Err(), "idle from then on")
				time.Sleep(9 * time.Second)
				require.Error(t, m.of("a")[0].ctx.Err())
			})
		})
	}
}

func TestCacheFull(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 2}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		a := c.Service("a")
		cacheUse(t, ctx, a, "")
		cacheUse(t, ctx, c.Service("b"), "")
		_, err := c.Service("c").Call(ctx, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.EqualError(t, err, "cache c: full: it holds 2 keys")
		require.ErrorIs(t, layer.Poll(c.Service("c")), layer.ErrNotReady)
		require.Empty(t, m.of("c"))

		begun := time.Now()
		waiting := make(chan time.Duration)
		go func() {
			assert.NoError(t, c.Service("c").Ready(ctx))
			waiting <- time.Since(begun)
		}()
		for range 8 { // b is idle, a is not
			cacheUse(t, ctx, a, "")
			time.Sleep(10 * time.Second)
		}
		require.Less(t, <-waiting, 70*time.Second)
		require.Equal(t, "c1", cacheUse(t, ctx, c.Service("c"), "1"))
		require.Error(t, m.of("b")[0].ctx.Err())
		require.NoError(t, m.of("a")[0].ctx.Err())
	})
}

func TestCacheManyKeys(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		for i := range 10_000 {
			cacheUse(t, ctx, c.Service(fmt.Sprint(i)), "")
		}
		_, err := c.Service("one more").Call(ctx, "")
		require.ErrorContains(t, err, "it holds 10000 keys")
		time.Sleep(2 * time.Minute)
		cacheUse(t, ctx, c.Service("one more"), "")
		require.EqualValues(t, 1, c.Describe().State.Get("keys"))
	})
}

// A closed service is made again, but not for every request.
func TestCacheClosedService(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		svc := c.Service("a")
		cacheUse(t, ctx, svc, "")
		inFlight, err := svc.Call(ctx, "")
		require.NoError(t, err)
		closed := &layer.Error{Layer: "balance", Kind: layer.ErrClosed}
		m.of("a")[0].serve = func(context.Context) (*cacheResponse, error) { return nil, closed }
		var failures int
		for len(m.of("a")) == 1 {
			if _, err := svc.Call(ctx, ""); err != nil {
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.NotErrorIs(t, err, layer.ErrClosed, "for those above it is not for good")
				require.EqualError(t, err, "cache a: not ready: closed until it is made again: balance: closed")
				failures++
			}
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, failures, 76, "within an eighth of a minute")
		require.Positive(t, failures)
		require.NoError(t, m.of("a")[0].ctx.Err(), "what is in flight goes on")
		require.NoError(t, inFlight.Body.Close())
		require.Error(t, m.of("a")[0].ctx.Err())
		require.Equal(t, "a1", cacheUse(t, ctx, svc, "1"))

		m.of("a")[1].ready = func(context.Context) error { return closed }
		err = layer.Poll(svc)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed, "the result of Ready")
		require.ErrorContains(t, err, "balance: closed")
		time.Sleep(8 * time.Second)
		require.NoError(t, layer.Poll(svc))
		require.Len(t, m.of("a"), 3)
	})
}

// A Ready of a closed service waits for the next service of the key.
func TestCacheReadyClosedService(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		svc := c.Service("a")
		cacheUse(t, ctx, svc, "")
		closed := &layer.Error{Layer: "balance", Kind: layer.ErrClosed}
		m.of("a")[0].ready = func(context.Context) error { return closed }
		gone, leave := context.WithTimeout(ctx, time.Second)
		defer leave()
		err := svc.Ready(gone)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "balance: closed")
		began := time.Now()
		require.NoError(t, svc.Ready(ctx))
		require.LessOrEqual(t, time.Since(began), 7500*time.Millisecond, "an eighth of a minute")
		require.Len(t, m.of("a"), 2)
	})
}

func TestCacheReadyNilService(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, _ *cacheOf, m *cacheMaker) {
		asked := 0
		ctx, end := context.WithCancel(ctx)
		c := layer.NewCache(ctx, func(ctx context.Context, key string) cacheService {
			if asked++; asked < 4 {
				return nil
			}
			return m.Make(ctx, key)
		}, layer.CachePolicy{})
		began := time.Now()
		require.NoError(t, c.Service("a").Ready(ctx))
		require.Equal(t, 4, asked)
		require.Equal(t, 22500*time.Millisecond, time.Since(began), "three eighths of a minute")

		asked = 0
		waiting := make(chan error)
		go func() { waiting <- c.Service("b").Ready(context.Background()) }()
		synctest.Wait()
		end()
		require.ErrorIs(t, <-waiting, layer.ErrClosed)
	})
}

func TestCacheContext(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, _ *cacheOf, m *cacheMaker) {
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(ctx)
		c := layer.NewCache(ctx, m.Make, layer.CachePolicy{})
		a := c.Service("a")
		_, err := a.Call(context.Background(), "")
		require.NoError(t, err)
		hung := make(chan struct{})
		m.on = func(string) { <-hung }
		making := make(chan error)
		go func() { _, err := c.Service("b").Call(context.Background(), ""); making <- err }()
		synctest.Wait()

		cancel(over)
		synctest.Wait()
		require.Error(t, m.of("a")[0].ctx.Err(), "whatever is open")
		close(hung)
		for _, err := range []error{<-making, cacheErr(a), cacheErr(c.Service("a")), cacheErr(c.Service("c")), c.Service("c").Ready(context.Background()), layer.Poll(a)} {
			require.ErrorIs(t, err, layer.ErrClosed)
			require.ErrorIs(t, err, over)
		}
		require.EqualError(t, cacheErr(a), "cache a: closed: the cache has ended: over")
		require.Error(t, m.of("b")[0].ctx.Err())
		require.EqualValues(t, 0, c.Describe().State.Get("keys"))
		require.Empty(t, m.of("c"))
	})
}

func TestCacheEndWakesReadyWhileFull(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, _ *cacheOf, m *cacheMaker) {
		ctx, cancel := context.WithCancel(ctx)
		c := layer.NewCache(ctx, m.Make, layer.CachePolicy{Capacity: 1})
		cacheUse(t, ctx, c.Service("a"), "")
		waiting := make(chan error)
		go func() { waiting <- c.Service("b").Ready(context.Background()) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-waiting, layer.ErrClosed)
	})
}

// The service of a key may ignore its context.
func TestCacheEndWakesReadyOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := layer.NewCache(ctx, func(context.Context, string) layer.Service[int, int] {
			return layer.Limit[int, int](0)(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil }))
		}, layer.CachePolicy{})
		waiting := make(chan error)
		go func() { waiting <- c.Service("a").Ready(t.Context()) }()
		synctest.Wait()
		cancel()
		err := <-waiting
		require.ErrorIs(t, err, layer.ErrClosed)
		require.EqualError(t, err, "cache a: closed: the cache has ended: context canceled")
	})
}

// The cache may end because a component has closed. Components that its services share
// with others have not closed.
func TestCacheEndHidesErrClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialer := newReconnectDialer()
		dialer.makes(layer.Limit[int, int](0)(&reconnectConn{}))
		shared := layer.Reconnect[int, int](t.Context(), dialer.connect, layer.Backoff{})
		ctx, cancel := context.WithCancelCause(t.Context())
		c := layer.NewCache(ctx, func(context.Context, string) layer.Service[int, int] { return shared }, layer.CachePolicy{})
		waiting := make(chan error)
		go func() { waiting <- c.Service("a").Ready(t.Context()) }()
		synctest.Wait()
		cancel(fmt.Errorf("the server: %w", layer.ErrClosed))
		require.ErrorIs(t, <-waiting, layer.ErrClosed)
		require.NotErrorIs(t, layer.Poll(shared), layer.ErrClosed)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, dialer.dials.Load())
	})
}

func cacheErr(svc cacheService) error {
	_, err := svc.Call(context.Background(), "")
	return err
}

func TestCacheMakePanic(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 1}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		first := make(chan struct{})
		var panicked atomic.Bool
		m.on = func(string) {
			if panicked.CompareAndSwap(false, true) {
				<-first
				panic("boom")
			}
		}
		go func() { assert.PanicsWithValue(t, "boom", func() { _ = cacheErr(c.Service("a")) }) }()
		synctest.Wait()
		served := make(chan string)
		go func() { served <- cacheUse(t, ctx, c.Service("a"), "1") }()
		synctest.Wait()
		close(first)
		require.Equal(t, "a1", <-served, "a waiting caller makes the service itself, because its place is free again")
	})
}

func TestCacheCanceledCaller(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		left := errors.New("left")
		gone, leave := context.WithCancelCause(ctx)
		leave(left)
		_, err := c.Service("a").Call(gone, "")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, left)
		require.Empty(t, m.of("a"))
	})
}

func TestCacheDescribe(t *testing.T) {
	inCache(t, layer.CachePolicy{}, func(t *testing.T, ctx context.Context, c *cacheOf, m *cacheMaker) {
		cacheUse(t, ctx, c.Service("web"), "")
		_, err := c.Service("api").Call(ctx, "")
		require.NoError(t, err)
		require.Equal(t, ""+
			"cache      keys=2 capacity=10000 idle=1m0s rejected=0\n"+
			"  entry      key=api open=1\n"+
			"  layer_test.cacheKept\n"+
			"  entry      key=web open=0\n"+
			"  layer_test.cacheKept\n", fmt.Sprint(c.Describe()))
		require.Equal(t, "cache      key=api\nlayer_test.cacheKept\n", layer.Describe(c.Service("api")).String())
		require.Equal(t, "cache      key=new\n", layer.Describe(c.Service("new")).String())
	})
}

func TestCacheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		made := 0
		c := layer.NewCache(life, func(context.Context, string) layer.Service[int, int] {
			made++
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, layer.CachePolicy{IdleTimeout: time.Second})
		keys := func() any { return c.Describe().State.Get("keys") }

		ctx, letGo := context.WithCancel(t.Context())
		require.NoError(t, c.Pin(ctx, "a"))
		require.NoError(t, c.Pin(ctx, "a"), "twice")
		_, err := c.Service("b").Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.EqualValues(t, 1, keys(), "only what is held is there")
		_, err = c.Service("a").Call(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, 2, made)

		letGo()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 0, keys())
		require.ErrorIs(t, c.Pin(ctx, "a"), layer.ErrNotReady)
		end()
		synctest.Wait()
		require.ErrorIs(t, c.Pin(t.Context(), "a"), layer.ErrClosed)
	})
}

// A caller that keeps the Service of a key does not keep the idle service in memory.
func TestCacheIdleServiceIsCollected(t *testing.T) {
	var last weak.Pointer[heavy]
	c := layer.NewCache(t.Context(), func(context.Context, string) layer.Service[int, int] {
		h := new(heavy)
		last = weak.Make(h)
		return h
	}, layer.CachePolicy{IdleTimeout: time.Millisecond})
	svc := c.Service("a")
	for range 2 {
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			runtime.GC()
			return last.Value() == nil
		}, time.Minute, time.Millisecond)
	}
	runtime.KeepAlive(svc)
}

type heavy struct{ _ [1 << 20]byte }

func (*heavy) Ready(context.Context) error                { return nil }
func (*heavy) Call(_ context.Context, n int) (int, error) { return n, nil }

func TestCachePolicyValidate(t *testing.T) {
	require.NoError(t, layer.CachePolicy{}.Validate())
	require.NoError(t, layer.CachePolicy{IdleTimeout: time.Second, Capacity: 1}.Validate())
	require.EqualError(t, layer.CachePolicy{IdleTimeout: -1}.Validate(), "CachePolicy.IdleTimeout is -1ns, must be at least 0")
	require.EqualError(t, layer.CachePolicy{Capacity: -1}.Validate(), "CachePolicy.Capacity is -1, must be at least 0")
}

func TestCachePolicyDefaults(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := &cacheMaker{made: make(map[string][]*cacheKept)}
	state := layer.NewCache(ctx, m.Make, layer.CachePolicy{}).Describe().State
	require.Equal(t, time.Minute, state.Get("idle"))
	require.Equal(t, 10_000, state.Get("capacity"))
}

// If the service is nil, the next request makes it again. The key takes no place in the
// cache, and the error is not a rejection for which a queue would wait.
func TestCacheNilService(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 1}, func(t *testing.T, ctx context.Context, _ *cacheOf, m *cacheMaker) {
		asked := 0
		c := layer.NewCache(ctx, func(ctx context.Context, key string) cacheService {
			if asked++; key == "no" {
				return nil
			}
			return m.Make(ctx, key)
		}, layer.CachePolicy{Capacity: 1})
		for range 3 {
			_, err := c.Service("no").Call(ctx, "")
			require.ErrorIs(t, err, layer.ErrNoRoute)
			require.NotErrorIs(t, err, layer.ErrNotReady)
			require.EqualError(t, err, "cache no: no route: no service for this key")
		}
		err := layer.Poll(c.Service("no"))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "no service for this key")
		require.Equal(t, 4, asked)
		require.EqualValues(t, 0, c.Describe().State.Get("keys"))
		require.Equal(t, "yes1", cacheUse(t, ctx, c.Service("yes"), "1"))
	})
}

func TestCacheCountsRejections(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 1}, func(t *testing.T, ctx context.Context, c *cacheOf, _ *cacheMaker) {
		cacheUse(t, ctx, c.Service("a"), "")
		for range 3 {
			require.Error(t, cacheErr(c.Service("b")))
		}
		require.EqualValues(t, 3, c.Describe().State.Get("rejected"))
	})
}

// Many callers use a few keys that are made and dropped. A key has one live service at a
// time, and no call reaches a service that has ended.
func TestCacheStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var live [5]atomic.Int64
		var late, made, twice atomic.Int64
		mk := func(ctx context.Context, key int) cacheService {
			made.Add(1)
			if live[key].Add(1) > 1 {
				twice.Add(1)
			}
			context.AfterFunc(ctx, func() { live[key].Add(-1) })
			return layer.Func[string, *cacheResponse](func(context.Context, string) (*cacheResponse, error) {
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				if ctx.Err() != nil {
					late.Add(1)
				}
				return cacheBody(""), nil
			})
		}
		c := layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: 40 * time.Millisecond, Capacity: 4})
		var all sync.WaitGroup
		for range 20 {
			mine := make([]cacheService, len(live))
			for key := range mine {
				mine[key] = c.Service(key)
			}
			all.Go(func() {
				for range 200 {
					key := rand.IntN(len(live))
					svc := mine[key]
					if rand.IntN(2) == 0 {
						svc = c.Service(key)
					}
					if rsp, err := svc.Call(ctx, ""); err == nil {
						assert.NoError(t, rsp.Body.Close())
					} else {
						assert.ErrorContains(t, err, "full")
					}
					time.Sleep(time.Duration(rand.IntN(int(500 * time.Millisecond))))
				}
			})
		}
		all.Wait()
		require.Zero(t, late.Load())
		// The AfterFunc of the old service may run just after the new one is made.
		require.LessOrEqual(t, twice.Load(), made.Load()/10)
		require.Greater(t, made.Load(), int64(len(live)), "they did come and go")
		time.Sleep(time.Second)
		for key := range live {
			require.Zero(t, live[key].Load(), "nothing is in use, so nothing is kept")
		}
		cancel()
		synctest.Wait()
	})
}
