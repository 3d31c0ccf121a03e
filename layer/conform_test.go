package layer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// If Min and Max are equal, the layer is a Limit, which the kit can check. The limit is
// still measured.
func TestConformAdaptiveLimit(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	fixed := func(n int) layer.AdaptivePolicy { return layer.AdaptivePolicy{Min: n, Max: n} }
	for name, spec := range map[string]layertest.Layer{
		"eight":     {Layer: layer.AdaptiveLimit[Q, R](fixed(8)), Limit: 8, NoAllocs: true},
		"one":       {Layer: layer.AdaptiveLimit[Q, R](fixed(1)), Limit: 1},
		"at return": {Layer: layer.AdaptiveLimit[Q](fixed(8), layer.WithCompletion(layer.AtReturn[R])), Limit: 8, AtReturn: true},
		"below a queue": {
			Layer: layer.NewStack[Q, R]().Queue(16, 0).With("adaptive", layer.AdaptiveLimit[Q, R](fixed(4))).Layer(),
			Limit: 4, Queue: 16,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

// The checks let more requests fail than the default policy allows.
func TestConformBreaker(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	patient := layer.BreakerPolicy{ConsecutiveFailures: 1 << 30}
	for name, spec := range map[string]layertest.Layer{
		"closed":    {Layer: layer.Breaker[Q, R](patient), NoAllocs: true},
		"ratio":     {Layer: layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 1e-9, MinRequests: 1_000_000}), NoAllocs: true},
		"at return": {Layer: layer.Breaker[Q](patient, layer.WithCompletion(layer.AtReturn[R])), AtReturn: true, NoAllocs: true},
		"no rules":  {Layer: layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: -1}), Transparent: true},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

// trippedBreaker is a breaker with a probe in flight, after it was filled.
type trippedBreaker struct {
	layer.Service[*layertest.Request, *layertest.Response]
	serve atomic.Pointer[func() error] // nil: well
	over  <-chan struct{}
}

func (s *trippedBreaker) fill() (free func()) {
	hold := make(chan struct{})
	fails := func() error { return errBreaker }
	probe := func() error {
		select {
		case <-hold:
		case <-s.over:
		}
		return layer.ErrInjected // decides nothing, and gives its place
	}
	s.serve.Store(&fails)
	s.Call(context.Background(), &layertest.Request{})
	time.Sleep(time.Hour) // the back-off
	s.serve.Store(&probe)
	go s.Call(context.Background(), &layertest.Request{})
	for layer.Poll(s.Service) == nil {
		time.Sleep(time.Nanosecond)
	}
	return func() {
		s.serve.Store(nil)
		close(hold)
	}
}

// While a probe is in flight, a breaker is a service without capacity.
func TestConformBreakerProbing(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Service{
		New: func(ctx context.Context) layer.Service[Q, R] {
			s := &trippedBreaker{over: ctx.Done()}
			s.Service = layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}})(
				layer.Func[Q, R](func(_ context.Context, req Q) (R, error) {
					if serve := s.serve.Load(); serve != nil {
						return nil, (*serve)()
					}
					return &layertest.Response{ID: req.ID}, nil
				}))
			return s
		},
		Fill: func(svc layer.Service[Q, R]) func() { return svc.(*trippedBreaker).fill() },
	})
}

type cacheKitService = layer.Service[*layertest.Request, *layertest.Response]

func cacheOver(ctx context.Context, next cacheKitService) *layer.Cache[string, *layertest.Request, *layertest.Response] {
	return layer.NewCache(ctx, func(context.Context, string) cacheKitService { return next }, layer.CachePolicy{})
}

func TestCacheConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{OutlivesInner: true, NoAllocs: true, New: func(ctx context.Context, next cacheKitService) cacheKitService {
		return cacheOver(ctx, next).Service("web")
	}})
}

func TestDeadlinesConform(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	allow := func(left time.Duration, ok bool) func(Q) (time.Duration, bool) {
		return func(Q) (time.Duration, bool) { return left, ok }
	}
	keep := func(req Q, _ time.Duration) Q { return req }
	for name, spec := range map[string]layertest.Layer{
		"in":            {Layer: layer.DeadlineFromRequest[Q, R](allow(time.Hour, true))},
		"in, not given": {Layer: layer.DeadlineFromRequest[Q, R](allow(0, false)), NoAllocs: true},
		"out":           {Layer: layer.DeadlineToRequest[Q, R](keep, 0), NoAllocs: true},
		"out of in": {Layer: layer.NewStack[Q, R]().
			With("in", layer.DeadlineFromRequest[Q, R](allow(time.Hour, true))).
			With("out", layer.DeadlineToRequest[Q, R](keep, time.Millisecond)).Layer()},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

func TestConformDrain(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		New: func(_ context.Context, next layer.Service[*layertest.Request, *layertest.Response],
		) layer.Service[*layertest.Request, *layertest.Response] {
			// Each check needs a Drainer of its own, because contexts from outside a bubble
			// do not block durably in it.
			return layer.Drain[*layertest.Request, *layertest.Response](layer.NewDrainer())(next)
		},
		NoAllocs: true,
	})
}

// A stack that drains is a service that can be closed.
func TestConformDrainClosed(t *testing.T) {
	type service = layer.Service[*layertest.Request, *layertest.Response]
	drainers := make(map[service]*layer.Drainer)
	layertest.Run(t, layertest.Service{
		New: func(context.Context) service {
			d := layer.NewDrainer()
			svc := layer.Drain[*layertest.Request, *layertest.Response](d)(
				layer.Func[*layertest.Request, *layertest.Response](
					func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
						return &layertest.Response{ID: req.ID}, nil
					}))
			drainers[svc] = d
			return svc
		},
		Close: func(svc service) { require.NoError(t, drainers[svc].Drain(context.Background())) },
	})
}

// The checks expect the errors of inner, so Handle returns them.
func TestConformFallback(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Layer{
		NoAllocs: true,
		Layer: layer.Fallback(layer.FallbackPolicy[Q, R]{
			Handle: func(_ context.Context, _ Q, o layer.Outcome[R]) (R, error) { return o.Response, o.Err },
		}),
	})
}

func TestConformFaultInjection(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	others := layer.FaultPolicy[Q]{Fraction: 1, Err: layer.ErrInjected, TTL: time.Hour}
	others.Match = func(Q) bool { return false }
	// The kit expects that requests are served, so no request gets a fault.
	layertest.Run(t, layertest.Layer{Layer: layer.FaultInjection[Q, R](others), Transparent: true})
}

func TestFilterConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Layer:       layer.Filter[mapKitRequest, mapKitResponse](func(mapKitRequest) error { return nil }),
		Transparent: true,
	})
}

func TestConformHedge(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	plenty := layer.NewBudget(0, 0, 1_000_000)
	for name, spec := range map[string]layertest.Layer{
		"no samples": {Layer: layer.Hedge[Q, R](layer.HedgePolicy[Q]{})},
		"not yet":    {Layer: layer.Hedge[Q, R](after[Q](100 * time.Hour))},
		"samples":    {Layer: layer.Hedge[Q, R](layer.HedgePolicy[Q]{MinSamples: 1, MinDelay: 100 * time.Hour})},
		"for others": {
			Layer:       layer.Hedge[Q, R](layer.HedgePolicy[Q]{HedgeIf: func(Q) bool { return false }}),
			Transparent: true,
		},
		"copies": {
			Layer:       layer.Hedge[Q, R](layer.HedgePolicy[Q]{Budget: plenty, MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}),
			MaxAttempts: 2, Pause: 10 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

func TestLazyConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Transparent: true,
		Layer: func(next layer.Service[mapKitRequest, mapKitResponse]) layer.Service[mapKitRequest, mapKitResponse] {
			return layer.Lazy(func() layer.Service[mapKitRequest, mapKitResponse] { return next })
		},
	})
}

type (
	mapKitRequest  = *layertest.Request
	mapKitResponse = *layertest.Response
)

// The kit compares the messages with their factories, so the layers return a copy of
// the request and the same response.
func TestMapLayersConform(t *testing.T) {
	for name, spec := range map[string]layertest.Layer{
		"map_request": {NoAllocs: true, Layer: layer.MapRequest[mapKitRequest, mapKitResponse](
			func(req mapKitRequest) mapKitRequest { return req })},
		"map_request that copies": {Layer: layer.MapRequest[mapKitRequest, mapKitResponse](
			func(req mapKitRequest) mapKitRequest {
				other := *req
				other.Header = map[string]string{"changed": "yes"}
				return &other
			})},
		"map_response": {Transparent: true, Layer: layer.MapResponse[mapKitRequest](
			func(rsp mapKitResponse) mapKitResponse { return rsp })},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

func TestConformMirror(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	for name, to := range map[string]layer.Func[Q, R]{
		"answers": func(_ context.Context, req Q) (R, error) { return &layertest.Response{ID: req.ID}, nil },
		"fails":   func(context.Context, Q) (R, error) { return nil, errors.New("down") },
		"panics":  func(context.Context, Q) (R, error) { panic("down") },
		"hangs": func(ctx context.Context, _ Q) (R, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		"not ready": func(context.Context, Q) (R, error) { return nil, layer.ErrNotReady },
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
					return layer.Mirror(ctx, to, forking{}, layer.MirrorPolicy[Q]{})(next)
				},
			})
		})
	}
	for name, policy := range map[string]layer.MirrorPolicy[Q]{
		"for others": {Match: func(Q) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
					return layer.Mirror(ctx, next, forking{}, policy)(next)
				},
				Transparent: true,
			})
		})
	}
}

// The kit treats rejections as a limit of requests in flight. So the rates are above
// those of the kit.
func TestConformRate(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	const much = 1_000_000
	for name, l := range map[string]layer.Layer[Q, R]{
		"rate":          layer.RateLimit[Q, R](much, much),
		"rate by key":   layer.RateLimitBy[int, Q, R](func(req Q) int { return req.ID % 100 }, much, much, 0),
		"a key for all": layer.RateLimitBy[int, Q, R](func(Q) int { return 0 }, much, much, 0),
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, layertest.Layer{Layer: l, NoAllocs: true}) })
	}
}

func TestConformReconnect(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Layer{
		NoAllocs:      true,
		OutlivesInner: true, // it connects again
		New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
			svc := layer.Reconnect(ctx, func(context.Context) (layer.Service[Q, R], error) { return next, nil }, layer.Backoff{})
			reconnectNow(svc)
			return svc
		},
	})
}

// reconnectNow connects svc. It does not send a request to the inner service.
func reconnectNow[Q, R any](svc layer.Service[Q, R]) { _ = svc.Ready(context.Background()) }

func TestRetryConforms(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	marked := func(rsp R) { rsp.Header["again"] = "yes" }
	classOf := func(o layer.Outcome[R]) layer.Class {
		if o.Err == nil && o.Response.Header["again"] != "" {
			return layer.Retryable
		}
		return layer.DefaultClassifier(o)
	}
	classify := layer.WithClassifier(classOf)
	sent := func(o layer.Outcome[R]) bool {
		return !errors.Is(o.Err, layer.ErrNotReady) && classOf(o).IsRetryable()
	}
	endless := layer.NewBudget(0, 0, 1_000_000)
	pause := 250 * time.Millisecond
	for name, spec := range map[string]layertest.Layer{
		"defaults": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{}), MaxAttempts: 3, Pause: pause},
		"responses": {
			Layer:       layer.Retry(layer.RetryPolicy[Q, R]{MaxAttempts: 5, Budget: endless}, classify),
			MaxAttempts: 5, Pause: pause, Retryable: marked,
		},
		"per try": {
			Layer:       layer.Retry(layer.RetryPolicy[Q, R]{AttemptTimeout: time.Second, Budget: endless}, classify),
			MaxAttempts: 3, Pause: time.Second + pause, Retryable: marked,
		},
		"no body kept": {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{MaxBodyBytes: -1}), MaxAttempts: 3, Pause: pause},
		"one try":      {Layer: layer.Retry[Q, R](layer.RetryPolicy[Q, R]{MaxAttempts: 1}), Transparent: true},
		"over a limit": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Limit(4).Layer(),
			Limit: 4, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"over a queue": {
			Layer: layer.NewStack[Q, R]().With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				Queue(16, 3*time.Second).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"in a queue": {
			Layer: layer.NewStack[Q, R]().Queue(16, 3*time.Second).
				With("retry", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless, RetryIf: sent}, classify)).Layer(),
			Queue: 16, MaxWait: 3 * time.Second, MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
		"in itself": {
			Layer: layer.NewStack[Q, R]().
				With("outer", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).
				With("inner", layer.Retry(layer.RetryPolicy[Q, R]{Budget: endless}, classify)).Layer(),
			MaxAttempts: 3, Pause: pause, Retryable: marked,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

// A router is always ready, so it is checked as a service. It returns the rejections of its
// routes.
func TestRouterConforms(t *testing.T) {
	key := func(req *layertest.Request) (int, error) { return req.ID % 3, nil }
	answer := layer.Func[*layertest.Request, *layertest.Response](
		func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
			return &layertest.Response{ID: req.ID}, nil
		})
	for name, svc := range map[string]func(context.Context) cacheKitService{
		"plain": func(context.Context) cacheKitService {
			return layer.Router(key, func(int) cacheKitService { return answer })
		},
		"with a cache": func(ctx context.Context) cacheKitService {
			mk := func(context.Context, int) cacheKitService { return answer }
			return layer.NewCache(ctx, mk, layer.CachePolicy{}).Router(key)
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, layertest.Service{New: svc}) })
	}
}

func TestConformShed(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	shed := layer.NewStack[Q, R]().With("shed", layer.Shed[Q, R](layer.ShedPolicy{Normal: 1}))
	for name, spec := range map[string]layertest.Layer{
		"alone":         {Layer: shed.Layer(), NoAllocs: true},
		"above a limit": {Layer: shed.Limit(8).Layer(), Limit: 8, NoAllocs: true},
		"above a queue": {Layer: shed.Queue(16, 0).Limit(4).Layer(), Limit: 4, Queue: 16},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

func TestTimeoutsConform(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	for name, spec := range map[string]layertest.Layer{
		"total": {Layer: layer.Timeout[Q, R](time.Minute)},
		"none":  {Layer: layer.Timeout[Q, R](0), Transparent: true},
		"head":  {Layer: layer.ResponseHeaderTimeout[Q, R](time.Minute)},
		"idle":  {Layer: layer.IdleTimeout[Q, R](time.Minute)},
		"all": {Layer: layer.NewStack[Q, R]().
			With("total", layer.Timeout[Q, R](3*time.Minute)).
			With("head", layer.ResponseHeaderTimeout[Q, R](2*time.Minute)).
			With("idle", layer.IdleTimeout[Q, R](time.Minute)).Layer()},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

// endCounter is a span that counts the admitted requests that ended.
type endCounter struct{ n *atomic.Int64 }

func (endCounter) Head(*layertest.Response)   {}
func (s endCounter) End(layer.Class, error)   { s.n.Add(1) }
func noSpan() layer.Span[*layertest.Response] { return nil }

func TestConformTrace(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	var ended atomic.Int64
	for name, spec := range map[string]layertest.Layer{
		"traced": {
			Layer: layer.Trace(func(ctx context.Context, _ Q) (context.Context, layer.Span[R]) { return ctx, endCounter{&ended} }),
			Ended: func() int { return int(ended.Load()) },
		},
		"not traced": {
			Layer:       layer.Trace(func(ctx context.Context, _ Q) (context.Context, layer.Span[R]) { return ctx, noSpan() }),
			Transparent: true,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
