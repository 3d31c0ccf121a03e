package layertest

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

// shipped returns all layers of the library with their declarations. Their
// deadlines and limits are too large for the checks to reach.
func shipped() map[string]Layer {
	type (
		Q = *Request
		R = *Response
		S = layer.Service[Q, R]
	)
	far := 10 * time.Hour
	each := func(mk func(ctx context.Context) layer.Layer[Q, R]) Layer {
		return Layer{New: func(ctx context.Context, next S) S { return mk(ctx)(next) }}
	}
	same := func(l layer.Layer[Q, R]) Layer { return Layer{Layer: l} }
	// A queue above may wait after a rejection.
	sent := func(o layer.Outcome[R]) bool {
		return !errors.Is(o.Err, layer.ErrNotReady) && layer.DefaultClassifier(o).IsRetryable()
	}
	retry := layer.RetryPolicy[Q, R]{Budget: layer.NewBudget(0, 0, 1_000_000), RetryIf: sent}
	return map[string]Layer{
		"timeout":                 same(layer.Timeout[Q, R](far)),
		"response header timeout": same(layer.ResponseHeaderTimeout[Q, R](far)),
		"idle timeout":            same(layer.IdleTimeout[Q, R](far)),
		"deadline in":             same(layer.DeadlineFromRequest[Q, R](func(Q) (time.Duration, bool) { return far, true })),
		"deadline out":            same(layer.DeadlineToRequest[Q, R](func(q Q, _ time.Duration) Q { return q }, 0)),

		"limit":     {Layer: layer.Limit[Q, R](8), Limit: 8, NoAllocs: true},
		"adaptive":  {Layer: layer.AdaptiveLimit[Q, R](layer.AdaptivePolicy{Min: 8, Max: 8}), Limit: 8},
		"rate":      same(layer.RateLimit[Q, R](1_000_000, 1_000_000)),
		"rate by":   same(layer.RateLimitBy[int, Q, R](func(q Q) int { return q.ID % 3 }, 1_000_000, 1_000_000, 0)),
		"shed":      same(layer.Shed[Q, R](layer.ShedPolicy{Normal: 1})),
		"queue":     {Layer: layer.Queue[Q, R](16, 3*time.Second), Queue: 16, MaxWait: 3 * time.Second},
		"drain":     each(func(context.Context) layer.Layer[Q, R] { return layer.Drain[Q, R](layer.NewDrainer()) }),
		"breaker":   same(layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: 1 << 30})),
		"retry":     {Layer: layer.Retry(retry), MaxAttempts: 3, Pause: 250 * time.Millisecond},
		"hedge":     same(layer.Hedge[Q, R](layer.HedgePolicy[Q]{MinDelay: far, MaxDelay: far})),
		"fallback":  same(layer.Fallback(layer.FallbackPolicy[Q, R]{Handle: passOn})),
		"reconnect": {OutlivesInner: true, New: connected},
		"lazy":      same(func(next S) S { return layer.Lazy(func() S { return next }) }),
		"cache":     {OutlivesInner: true, New: cached}, // the next service may be open
		"filter":    same(layer.Filter[Q, R](func(Q) error { return nil })),
		"map":       same(layer.MapRequest[Q, R](func(q Q) Q { other := *q; return &other })),
		"metrics":   same(layer.Metrics[Q, R](layer.Instruments{})),
		"trace":     same(layer.Trace[Q, R](traced)),
		"fault":     same(layer.FaultInjection[Q, R](layer.FaultPolicy[Q]{Match: func(Q) bool { return false }, Fraction: 1, Delay: far, TTL: far})),
		"mirror":    each(mirrored),
	}
}

func passOn(_ context.Context, _ *Request, o layer.Outcome[*Response]) (*Response, error) {
	return o.Response, o.Err
}

func connected(ctx context.Context, next service) service {
	svc := layer.Reconnect(ctx, func(context.Context) (service, error) { return next, nil }, layer.Backoff{})
	_ = svc.Ready(context.Background())
	return svc
}

func cached(ctx context.Context, next service) service {
	return layer.NewCache(ctx, func(context.Context, int) service { return next }, layer.CachePolicy{}).Service(1)
}

type span struct{}

func (span) Head(*Response)         {}
func (span) End(layer.Class, error) {}

func traced(ctx context.Context, _ *Request) (context.Context, layer.Span[*Response]) {
	return ctx, span{}
}

func TestShippedLayers(t *testing.T) {
	for name, spec := range shipped() {
		t.Run(name, func(t *testing.T) { Run(t, short(spec)) })
	}
}

func full() bool { return os.Getenv("GOTOWER_TESTS") == "full" }

// short returns spec with fewer concurrent callers, unless GOTOWER_TESTS is "full" or the
// race detector is on.
func short(spec Layer) Layer {
	if !full() && !raceEnabled {
		spec.callers = shortCallers
	}
	return spec
}

// Every ordered pair of layers keeps the contract. Unless GOTOWER_TESTS is "full",
// each layer is once the outer and once the inner one of a pair.
func TestMatrix(t *testing.T) {
	layers := shipped()
	names := slices.Sorted(maps.Keys(layers))
	step := len(names)
	if full() {
		step = 1
	}
	for i, outerName := range names {
		for j, innerName := range names {
			if (i+j)%step != 0 {
				continue
			}
			outer, inner := layers[outerName], layers[innerName]
			t.Run(outerName+" over "+innerName, func(t *testing.T) { Run(t, over(outer, inner)) })
		}
	}
}

// over returns outer over inner with its declaration.
func over(outer, inner Layer) Layer {
	both := Layer{
		Limit:         max(outer.Limit, inner.Limit),
		Queue:         outer.Queue,
		MaxWait:       outer.MaxWait,
		AtReturn:      outer.AtReturn || inner.AtReturn,
		OutlivesInner: outer.OutlivesInner || inner.OutlivesInner,
		MaxAttempts:   max(outer.MaxAttempts, inner.MaxAttempts),
		Pause:         max(outer.Pause, inner.Pause),
		queueBelow:    outer.Limit > 0 && inner.Queue > 0,
		callers:       50, // because there are many pairs
	}
	if outer.Layer != nil && inner.Layer != nil {
		both.Layer = func(next service) service { return outer.Layer(inner.Layer(next)) }
	} else {
		both.New = func(ctx context.Context, next service) service {
			return applied(ctx, outer, applied(ctx, inner, next))
		}
	}
	if outer.Limit > 0 && inner.Limit > 0 {
		both.Limit = min(outer.Limit, inner.Limit)
	}
	if outer.Limit == 0 && inner.Queue > 0 {
		both.Queue += inner.Queue
		both.MaxWait = max(outer.MaxWait, inner.MaxWait)
	}
	return both
}

func applied(ctx context.Context, l Layer, next service) service {
	if l.New != nil {
		return l.New(ctx, next)
	}
	return l.Layer(next)
}
