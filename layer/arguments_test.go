package layer_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestOptionNil(t *testing.T) {
	svc := layer.NewStack[string, string](nil).WithTarget("web").Limit(0).Service(layer.Func[string, string](repeat))
	_, err := svc.Call(t.Context(), "a")
	require.EqualError(t, err, "limit web: not ready: 0 of 0 in flight")
}

func TestConstructorsNilArguments(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	key := func(string) (string, error) { return "", nil }
	mk := func(context.Context, string) layer.Service[string, string] { return leaf }
	for want, construct := range map[string]func(){
		"layer: Router: nil key function": func() {
			layer.Router(nil, func(string) layer.Service[string, string] { return leaf })
		},
		"layer: Router: nil Make":   func() { layer.Router[string, string, string](key, nil) },
		"layer: Lazy: nil function": func() { layer.Lazy[string, string](nil) },
		"layer: Stack: nil service": func() { layer.NewStack[string, string]().Service(nil) },
		`layer: Stack: layer "mine" returned nil`: func() {
			none := func(layer.Service[string, string]) layer.Service[string, string] { return nil }
			layer.NewStack[string, string]().With("mine", none).Service(leaf)
		},
		"layer: NewCache: nil function": func() {
			layer.NewCache[string, string, string](t.Context(), nil, layer.CachePolicy{})
		},
		"layer: Cache.Router: nil key function": func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			layer.NewCache(ctx, mk, layer.CachePolicy{}).Router(nil)
		},
		"layer: Reconnect: nil function": func() {
			layer.Reconnect[string, string](t.Context(), nil, layer.Backoff{})
		},
		"layer: WithClassifier: nil Classifier": func() { layer.WithClassifier[string](nil) },
		"layer: WithCompletion: nil Completion": func() { layer.WithCompletion[string](nil) },
		"layer: WithProtocol: nil Protocol":     func() { layer.WithProtocol[string, string](nil) },
		"layer: WithProtocol: layer.BaseProtocol[string,string] is not for requests of type int": func() {
			layer.Retry(layer.RetryPolicy[int, string]{}, layer.WithProtocol(layer.BaseProtocol[string, string]{}))
		},
		"layer: MapRequest: nil function":          func() { layer.MapRequest[string, string](nil) },
		"layer: MapResponse: nil function":         func() { layer.MapResponse[string, string](nil) },
		"layer: Filter: nil function":              func() { layer.Filter[string, string](nil) },
		"layer: Trace: nil function":               func() { layer.Trace[string, string](nil) },
		"layer: Drain: nil Drainer":                func() { layer.Drain[string, string](nil) },
		"layer: RateLimitBy: nil key function":     func() { layer.RateLimitBy[int, string, string](nil, 1, 1, 1) },
		"layer: DeadlineFromRequest: nil function": func() { layer.DeadlineFromRequest[string, string](nil) },
		"layer: DeadlineToRequest: nil function":   func() { layer.DeadlineToRequest[string, string](nil, 0) },
		"layer: Mirror: nil service or Editor": func() {
			layer.Mirror[string, string](t.Context(), leaf, nil, layer.MirrorPolicy[string]{})
		},
		"layer: FallbackPolicy: Handle must be set": func() {
			layer.Fallback(layer.FallbackPolicy[string, string]{})
		},
	} {
		require.PanicsWithValue(t, want, construct)
	}
}

func TestConstructorsInvalidArguments(t *testing.T) {
	type (
		retry  = layer.RetryPolicy[string, string]
		hedge  = layer.HedgePolicy[string]
		mirror = layer.MirrorPolicy[string]
		fault  = layer.FaultPolicy[string]
	)
	leaf := layer.Func[string, string](repeat)
	key := func(string) int { return 0 }
	for want, construct := range map[string]func(){
		"Timeout is -1ns, must be at least 0s":                   func() { layer.Timeout[string, string](-1) },
		"ResponseHeaderTimeout is -1ns, must be at least 0s":     func() { layer.ResponseHeaderTimeout[string, string](-1) },
		"IdleTimeout is -1ns, must be at least 0s":               func() { layer.IdleTimeout[string, string](-1) },
		"Limit is -1, must be at least 0":                        func() { layer.Limit[string, string](-1) },
		"Queue: capacity is -1, must be at least 0":              func() { layer.Queue[string, string](-1, 0) },
		"Queue: maxWait is -1ns, must be at least 0s":            func() { layer.Queue[string, string](1, -1) },
		"RateLimit: rate is NaN, must be at least 0":             func() { layer.RateLimit[string, string](math.NaN(), 1) },
		"RateLimit: burst is -1, must be at least 0":             func() { layer.RateLimit[string, string](1, -1) },
		"RateLimitBy: keys is -1, must be at least 0":            func() { layer.RateLimitBy[int, string, string](key, 1, 1, -1) },
		"RetryPolicy.MaxAttempts is 101, must be 1 to 100":       func() { layer.Retry(retry{MaxAttempts: 101}) },
		"RetryPolicy.AttemptTimeout is -1ns, must be at least 0": func() { layer.Retry(retry{AttemptTimeout: -1}) },
		"RetryPolicy.Backoff: backoff: jitter -1 must be from 0 to 100": func() {
			layer.Retry(retry{Backoff: layer.Backoff{Jitter: -1}})
		},
		"HedgePolicy.Quantile is 1, must be above 0 and below 1": func() { layer.Hedge[string, string](hedge{Quantile: 1}) },
		"MirrorPolicy.Fraction is 2, must be 0 to 1": func() {
			layer.Mirror(t.Context(), leaf, texts{}, mirror{Fraction: 2})
		},
		"FaultPolicy.TTL is 0s, must be above 0": func() {
			layer.FaultInjection[string, string](fault{Fraction: 1, Delay: 1})
		},
		"BreakerPolicy.MinSuccessRate is 2, must be 0 to 1": func() {
			layer.Breaker[string, string](layer.BreakerPolicy{MinSuccessRate: 2})
		},
		"ShedPolicy.Low is 0.75, must be at most Normal, 0.5": func() {
			layer.Shed[string, string](layer.ShedPolicy{Normal: 0.5, Low: 0.75})
		},
		"AdaptivePolicy.Min is -1, must be at least 1": func() {
			layer.AdaptiveLimit[string, string](layer.AdaptivePolicy{Min: -1})
		},
		"CachePolicy.Capacity is -1, must be at least 0": func() {
			layer.NewCache(t.Context(), func(context.Context, string) layer.Service[string, string] { return leaf },
				layer.CachePolicy{Capacity: -1})
		},
		"Reconnect: backoff: max 1s must be at least min 2s": func() {
			connect := func(context.Context) (layer.Service[string, string], error) { return leaf, nil }
			layer.Reconnect(t.Context(), connect, layer.Backoff{Min: 2 * time.Second, Max: time.Second})
		},
	} {
		require.PanicsWithValue(t, "layer: "+want, construct)
	}
}
