package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type noop struct{ layer.Service[int, int] }

func (n noop) Call(ctx context.Context, req int) (int, error) { return n.Service.Call(ctx, req) }

func echo(_ context.Context, req int) (int, error) { return req, nil }

func call(b *testing.B, svc layer.Service[int, int]) {
	b.Helper()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNoop(b *testing.B) {
	for _, n := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			stack := layer.NewStack[int, int]()
			for range n {
				stack = stack.With("noop", func(next layer.Service[int, int]) layer.Service[int, int] { return noop{next} })
			}
			call(b, stack.Service(layer.Func[int, int](echo)))
		})
	}
}

// BenchmarkCatalog measures each layer of the catalog with a request that it admits.
func BenchmarkCatalog(b *testing.B) {
	req := new(layertest.Request)
	rsp := new(layertest.Response)
	leaf := layer.Func[kitQ, kitR](func(context.Context, kitQ) (kitR, error) { return rsp, nil })
	for _, e := range catalogLayers() {
		b.Run(e.name, func(b *testing.B) {
			svc := e.newLayer(b.Context())(leaf)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := svc.Call(context.Background(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLimit(b *testing.B) {
	svc := layer.Limit[int, int](8)(layer.Func[int, int](echo))
	b.Run("serial", func(b *testing.B) { call(b, svc) })
	b.Run("full", func(b *testing.B) {
		svc := layer.Limit[int, int](0)(layer.Func[int, int](echo))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
	})
}

func BenchmarkQueue(b *testing.B) {
	b.Run("uncontended", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().Queue(1000, time.Second).Service(layer.Func[int, int](echo)))
	})
	b.Run("over limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().Queue(1000, time.Second).Limit(8).Service(layer.Func[int, int](echo)))
	})
	for _, callers := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d callers for 8 slots", callers), func(b *testing.B) {
			svc := layer.NewStack[int, int]().Queue(callers, time.Minute).Limit(8).
				Service(layer.Func[int, int](func(context.Context, int) (int, error) { time.Sleep(time.Microsecond); return 1, nil }))
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := svc.Call(context.Background(), 1); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// alwaysReady is ready, but rejects all requests, as a balancer does that has not noticed yet that
// its endpoints are not ready.
type alwaysReady struct{}

func (alwaysReady) Ready(context.Context) error            { return nil }
func (alwaysReady) Call(context.Context, int) (int, error) { return 0, layer.ErrNotReady }

// BenchmarkQueueRejection measures requests that inner rejects while other requests wait.
func BenchmarkQueueRejection(b *testing.B) {
	for _, callers := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			q := queueOver(alwaysReady{}, callers, 0)
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = q.Call(context.Background(), 1)
				}
			})
		})
	}
}

func BenchmarkAdaptiveLimit(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	l := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{})
	b.Run("serial", func(b *testing.B) { call(b, l(leaf)) })
	b.Run("full", func(b *testing.B) {
		inside, done := make(chan struct{}), make(chan struct{})
		svc := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Max: 1})(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
			inside <- struct{}{}
			<-inside
			return req, nil
		}))
		go func() {
			defer close(done)
			_, _ = svc.Call(context.Background(), 1)
		}()
		<-inside
		benchRefusals(b, context.Background(), svc)
		inside <- struct{}{}
		<-done
	})
	b.Run("parallel", func(b *testing.B) { benchParallel(b, context.Background(), l(leaf)) })
}

func BenchmarkBreaker(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	consecutive := layer.Breaker[int, int](layer.BreakerPolicy{})(leaf)
	unified := layer.Breaker[int, int](layer.UnifiedBreaker())(leaf)
	b.Run("leaf", func(b *testing.B) { call(b, leaf) })
	b.Run("consecutive", func(b *testing.B) { call(b, consecutive) })
	b.Run("unified", func(b *testing.B) { call(b, unified) })
	for name, svc := range map[string]layer.Service[int, int]{"consecutive": consecutive, "unified": unified} {
		b.Run(name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = svc.Call(context.Background(), 1)
				}
			})
		})
	}
	b.Run("open", func(b *testing.B) {
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errors.New("down") }))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
}

// "no body" has responses without a body. The other case has the cost of observing a body.
func BenchmarkBreakerBodies(b *testing.B) {
	for name, body := range map[string]io.ReadCloser{"no body": nil, "body": breakerBody{io.EOF}} {
		b.Run(name, func(b *testing.B) {
			rsp := &breakerReply{Status: 200}
			svc := newReplyBreaker(func(context.Context) *breakerReply { rsp.Body = body; return rsp })
			buf := make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				got, _ := svc.Call(context.Background(), 1)
				if got.Body != nil {
					_, _ = got.Body.Read(buf)
				}
			}
		})
	}
}

func BenchmarkBudgetDeposit(b *testing.B) {
	budget := layer.NewBudget(0, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		budget.Deposit()
	}
}

func BenchmarkBudgetDepositParallel(b *testing.B) {
	budget := layer.NewBudget(0, 0, 0)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			budget.Deposit()
		}
	})
}

func BenchmarkBudgetWithdraw(b *testing.B) {
	budget := layer.NewBudget(0, 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		budget.Deposit()
		budget.Withdraw()
	}
}

// cacheOfMany returns a cache with a thousand keys, and the last of the keys.
func cacheOfMany(tb testing.TB) (c *layer.Cache[string, int, int], key string) {
	tb.Helper()
	mk := func(context.Context, string) layer.Service[int, int] { return layer.Func[int, int](echo) }
	c = layer.NewCache(tb.Context(), mk, layer.CachePolicy{})
	for i := range 1000 {
		key = fmt.Sprintf("service-%d.default.svc.cluster.local:80", i)
		_, err := c.Service(key).Call(tb.Context(), 1)
		require.NoError(tb, err)
	}
	return c, key
}

func TestCacheHitAllocations(t *testing.T) {
	c, key := cacheOfMany(t)
	ctx := context.Background()
	kept, routed := c.Service(key), c.Router(func(int) (string, error) { return key, nil })
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = c.Service(key).Call(ctx, 1)
		_, _ = kept.Call(ctx, 1)
		_, _ = routed.Call(ctx, 1)
	}))
}

func BenchmarkCache(b *testing.B) {
	c, key := cacheOfMany(b)
	ctx := context.Background()
	b.Run("looked up", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = c.Service(key).Call(ctx, 1)
		}
	})
	b.Run("kept", func(b *testing.B) { call(b, c.Service(key)) })
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = c.Service(key).Call(ctx, 1)
			}
		})
	})
}

func BenchmarkDrain(b *testing.B) {
	svc := layer.Drain[int, int](layer.NewDrainer())(layer.Func[int, int](echo))
	b.Run("serial", func(b *testing.B) { call(b, svc) })
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
	})
	b.Run("draining", func(b *testing.B) {
		d := layer.NewDrainer()
		svc := layer.Drain[int, int](d)(layer.Func[int, int](echo))
		if err := d.Drain(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
}

func BenchmarkFallback(b *testing.B) {
	policy := layer.FallbackPolicy[int, int]{
		Handle: func(context.Context, int, layer.Outcome[int]) (int, error) { return 1, nil },
	}
	b.Run("unused", func(b *testing.B) { call(b, layer.Fallback(policy)(layer.Func[int, int](echo))) })
	b.Run("used", func(b *testing.B) {
		call(b, layer.Fallback(policy)(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errBreaker })))
	})
}

func BenchmarkFaultInjection(b *testing.B) {
	p := layer.FaultPolicy[int]{Fraction: 1e-9, Err: layer.ErrInjected, TTL: time.Hour}
	b.Run("on", func(b *testing.B) { call(b, layer.FaultInjection[int, int](p)(layer.Func[int, int](echo))) })
}

func BenchmarkHedge(b *testing.B) {
	inner := layer.Func[int, int](echo)
	b.Run("not to be hedged", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{HedgeIf: func(int) bool { return false }})(inner))
	})
	b.Run("no samples", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1_000_000})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil })))
	})
	b.Run("in time", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1, MinDelay: time.Minute})(inner))
	})
	b.Run("in time, a goroutine for each", func(b *testing.B) { call(b, hedgeByGoroutines{inner, time.Minute}) })
	b.Run("in time, inner asks for Done", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1, MinDelay: time.Minute})(hedgeAsking))
	})
	b.Run("in time, a goroutine for each, inner asks for Done", func(b *testing.B) {
		call(b, hedgeByGoroutines{hedgeAsking, time.Minute})
	})
	b.Run("the copy wins", func(b *testing.B) {
		policy := layer.HedgePolicy[int]{MinDelay: 1, MaxDelay: 1, Budget: layer.NewBudget(time.Second, 10, 1_000_000)}
		call(b, layer.Hedge[int, int](policy)(hedgeStuckFirst()))
	})
	b.Run("the copy wins, a goroutine for each", func(b *testing.B) { call(b, hedgeByGoroutines{hedgeStuckFirst(), 1}) })
}

// hedgeAsking is a service that calls methods of its context.
var hedgeAsking = layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
	select {
	case <-ctx.Done():
	default:
	}
	return 1, nil
})

// hedgeStuckFirst does not respond to the first attempt, and responds to the copy at once.
func hedgeStuckFirst() layer.Service[int, int] {
	var n atomic.Int64
	return layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		if n.Add(1)%2 == 0 {
			return 1, nil
		}
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
}

// hedgeByGoroutines is a simpler hedge for comparison. It runs each attempt on a goroutine
// of its own, and returns the first result.
type hedgeByGoroutines struct {
	layer.Service[int, int]

	delay time.Duration
}

func (h hedgeByGoroutines) Call(ctx context.Context, req int) (int, error) {
	type answer struct {
		rsp int
		err error
	}
	ctx, cancel := context.WithCancel(layer.WithAttempts(ctx, new(layer.Attempts)))
	defer cancel()
	answers := make(chan answer, 2)
	send := func() {
		rsp, err := h.Service.Call(ctx, req)
		answers <- answer{rsp, err}
	}
	go send()
	timer := time.NewTimer(h.delay)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.rsp, a.err
	case <-timer.C:
		go send()
	}
	a := <-answers
	return a.rsp, a.err
}

func BenchmarkMap(b *testing.B) {
	id := func(n int) int { return n }
	leaf := layer.Func[int, int](echo)
	for _, bb := range []struct {
		name string
		svc  layer.Service[int, int]
	}{
		{"inner", leaf},
		{"noop", noop{leaf}},
		{"request", layer.MapRequest[int, int](id)(leaf)},
		{"response", layer.MapResponse[int](id)(leaf)},
	} {
		b.Run(bb.name, func(b *testing.B) { call(b, bb.svc) })
	}
}

type numbers struct{ layer.Editor[int, int] }

func (numbers) TeeRequest(req int, _ int64, whole func(copied int, ok bool)) int {
	whole(req, true)
	return req
}

func BenchmarkMirror(b *testing.B) {
	inner := layer.Func[int, int](echo)
	for name, p := range map[string]layer.MirrorPolicy[int]{
		"full":      {MaxInFlight: 1}, // most of them beyond it
		"share":     {Fraction: 1e-9},
		"others":    {Match: func(int) bool { return false }},
		"thousands": {Fraction: 1e-3},
	} {
		b.Run(name, func(b *testing.B) {
			call(b, layer.Mirror(b.Context(), layer.Service[int, int](inner), numbers{}, p)(inner))
		})
	}
}

func BenchmarkRateLimit(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	const much = 1e9
	b.Run("serial", func(b *testing.B) { call(b, layer.RateLimit[int, int](much, much)(leaf)) })
	b.Run("full", func(b *testing.B) { benchRefusals(b, context.Background(), layer.RateLimit[int, int](0, 0)(leaf)) })
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.RateLimit[int, int](much, much)(leaf))
	})
}

func BenchmarkRateLimitBy(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	const much = 1e9
	b.Run("serial", func(b *testing.B) { call(b, layer.RateLimitBy[string, int, int](tenantOf, much, much, 0)(leaf)) })
	b.Run("full", func(b *testing.B) {
		benchRefusals(b, context.Background(), layer.RateLimitBy[string, int, int](tenantOf, 0, 0, 0)(leaf))
	})
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.RateLimitBy[string, int, int](tenantOf, much, much, 0)(leaf))
	})
	b.Run("new keys", func(b *testing.B) {
		svc := layer.RateLimitBy[int, int, int](func(req int) int { return req }, much, 1, 1<<12)(leaf)
		ctx := context.Background()
		next := 0
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, next)
			next++
		}
	})
}

type retryRequest struct {
	Method string
	Body   io.ReadCloser
}

func BenchmarkRetry(b *testing.B) {
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	svc := layer.Retry(layer.RetryPolicy[int, int]{})(inner)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRetryMethod(b *testing.B) {
	rsp := &response{}
	inner := layer.Func[*retryRequest, *response](func(context.Context, *retryRequest) (*response, error) { return rsp, nil })
	svc := layer.Retry(layer.RetryPolicy[*retryRequest, *response]{})(inner)
	req := &retryRequest{Method: "GET"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRetryAttemptTimeout(b *testing.B) {
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	svc := layer.Retry(layer.RetryPolicy[int, int]{AttemptTimeout: time.Second})(inner)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// The request body has 1 KiB, which is read and stored.
func BenchmarkRetryBody(b *testing.B) {
	text := strings.Repeat("x", 1<<10)
	buf := make([]byte, 2<<10)
	rsp := &response{}
	inner := layer.Func[*retryRequest, *response](func(_ context.Context, req *retryRequest) (*response, error) {
		defer req.Body.Close()
		_, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{req.Body}, buf)
		return rsp, err
	})
	svc := layer.Retry(layer.RetryPolicy[*retryRequest, *response]{})(inner)
	source := strings.NewReader(text)
	req := &retryRequest{Method: "PUT", Body: io.NopCloser(source)}
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(text)
		if _, err := svc.Call(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRouter(b *testing.B) {
	c, long := cacheOfMany(b)
	const short = "web"
	_, _ = c.Service(short).Call(context.Background(), 1)
	b.Run("plain", func(b *testing.B) {
		svc := layer.Service[int, int](layer.Func[int, int](echo))
		call(b, layer.Router(func(int) (int, error) { return 1, nil }, func(int) layer.Service[int, int] { return svc }))
	})
	b.Run("cache hit", func(b *testing.B) {
		call(b, c.Router(func(int) (string, error) { return short, nil }))
	})
	b.Run("cache hit long key", func(b *testing.B) {
		call(b, c.Router(func(int) (string, error) { return long, nil }))
	})
}

func BenchmarkShed(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	low := layer.WithPriority(context.Background(), layer.PriorityLow)
	b.Run("serial", func(b *testing.B) { call(b, layer.Shed[int, int](layer.ShedPolicy{})(leaf)) })
	b.Run("marked", func(b *testing.B) {
		svc := layer.Shed[int, int](layer.ShedPolicy{})(leaf)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(low, 1)
		}
	})
	b.Run("full", func(b *testing.B) {
		inside, done := make(chan struct{}), make(chan struct{})
		svc := layer.NewStack[int, int]().With("shed", layer.Shed[int, int](layer.ShedPolicy{})).Limit(1).
			Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				inside <- struct{}{}
				<-inside
				return req, nil
			}))
		go func() {
			defer close(done)
			_, _ = svc.Call(context.Background(), 1)
		}()
		<-inside
		_, _ = svc.Call(context.Background(), 1)
		benchRefusals(b, low, svc)
		inside <- struct{}{}
		<-done
	})
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.Shed[int, int](layer.ShedPolicy{})(leaf))
	})
}

// reject benchmarks calls that are all rejected.
func benchRefusals(b *testing.B, ctx context.Context, svc layer.Service[int, int]) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err == nil {
			b.Fatal("admitted")
		}
	}
}

// benchParallel benchmarks concurrent callers with separate requests.
func benchParallel(b *testing.B, ctx context.Context, svc layer.Service[int, int]) {
	b.Helper()
	var callers atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		id := int(callers.Add(1))
		for pb.Next() {
			_, _ = svc.Call(ctx, id)
		}
	})
}

func tenantOf(req int) string { return [...]string{"anna", "bert", "carla", "dora"}[req&3] }

// The four layers that most clients need, without failures: retry, timeout, breaker and
// limit.
func BenchmarkFour(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	b.Run("timeout+retry+breaker+limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
	b.Run("timeout+retry+unified breaker+limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{}).
			Breaker(layer.UnifiedBreaker()).
			Limit(100).
			Service(leaf))
	})
	b.Run("per try too", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{AttemptTimeout: time.Second}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
	b.Run("everything", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Drain(layer.NewDrainer()).
			Timeout(time.Second).
			Shed(layer.ShedPolicy{}).
			Retry(layer.RetryPolicy[int, int]{}).
			Queue(100, time.Second).
			RateLimit(1e9, 1e6).
			AdaptiveLimit(layer.AdaptivePolicy{}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
}

// BenchmarkTimeouts measures a request with a time limit, in a context that can be
// canceled. "context" uses context.WithTimeoutCause instead of the layer. In "done" the
// leaf calls Done of its context. In "body" the response has a body to read.
func BenchmarkTimeouts(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	waits := func(ctx context.Context, req int) (int, error) { ctx.Done(); return req, nil }
	plainly := func(next layer.Service[int, int]) layer.Service[int, int] {
		return layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Second, layer.ErrTimeout)
			defer cancel()
			return next.Call(ctx, req)
		})
	}
	for name, l := range map[string]layer.Layer[int, int]{
		"context": plainly,
		"total":   layer.Timeout[int, int](time.Second),
		"head":    layer.ResponseHeaderTimeout[int, int](time.Second),
		"in":      layer.DeadlineFromRequest[int, int](func(int) (time.Duration, bool) { return time.Second, true }),
		"out":     layer.DeadlineToRequest[int, int](func(req int, _ time.Duration) int { return req }, 0),
	} {
		for leaf, f := range map[string]layer.Func[int, int]{"leaf": echo, "done": waits} {
			svc := l(f)
			b.Run(name+"/"+leaf, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = svc.Call(ctx, 1)
				}
			})
		}
	}
	type Rsp = *response
	for name, l := range map[string]layer.Layer[int, Rsp]{
		"no layer": func(next layer.Service[int, Rsp]) layer.Service[int, Rsp] { return next },
		"total":    layer.Timeout[int, Rsp](time.Second),
		"head":     layer.ResponseHeaderTimeout[int, Rsp](time.Second),
		"idle":     layer.IdleTimeout[int, Rsp](time.Second),
	} {
		svc := l(layer.Func[int, Rsp](func(context.Context, int) (Rsp, error) {
			return &response{Body: io.NopCloser(strings.NewReader("hello"))}, nil
		}))
		b.Run(name+"/body", func(b *testing.B) {
			buf := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				rsp, _ := svc.Call(ctx, 1)
				_, _ = rsp.Body.Read(buf)
				_, _ = rsp.Body.Read(buf)
				_ = rsp.Body.Close()
			}
		})
	}
}

type deafSpan struct{}

func (deafSpan) Head(int)               {}
func (deafSpan) End(layer.Class, error) {}

func BenchmarkTrace(b *testing.B) {
	var span layer.Span[int]
	svc := layer.Trace(func(ctx context.Context, _ int) (context.Context, layer.Span[int]) { return ctx, span })(
		layer.Func[int, int](echo))
	b.Run("off", func(b *testing.B) { call(b, svc) })
	span = deafSpan{}
	b.Run("on", func(b *testing.B) { call(b, svc) })
}
