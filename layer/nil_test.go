package layer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// What is nil does nothing, rather than to panic at the first request.
func TestNilIsNoLayer(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	for name, l := range map[string]layer.Layer[string, string]{
		"map_request":  layer.MapRequest[string, string](nil),
		"map_response": layer.MapResponse[string, string](nil),
		"map_err":      layer.MapErr[string, string](nil),
		"then":         layer.Then[string, string](nil),
		"filter":       layer.Filter[string, string](nil),
		"if":           layer.If(nil, layer.Limit[string, string](0)),
	} {
		svc := l(leaf)
		require.Equal(t, "layer.Func\n", layer.Describe(svc).String(), name)
		got, err := svc.Call(t.Context(), "a")
		require.NoError(t, err, name)
		require.Equal(t, "a", got, name)
	}
}

// A limit stays one: nobody tells its requests apart.
func TestNilKeyIsOneForAll(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	for name, none := range map[string]layer.Layer[string, string]{
		"limit_by": layer.LimitBy[int, string, string](nil, 0),
		"rate_by":  layer.RateLimitBy[int, string, string](nil, 1e-9, 1, 10),
	} {
		svc := none(leaf)
		svc.Call(t.Context(), "a") // takes the one token
		_, err := svc.Call(t.Context(), "b")
		require.ErrorIs(t, err, layer.ErrNotReady, name)
	}
	_, err := layer.LimitBy[int, string, string](nil, 1)(leaf).Call(t.Context(), "a")
	require.NoError(t, err)
}

func TestNilOptionIsNone(t *testing.T) {
	svc := layer.NewStack[string, string](nil, layer.WithTarget[string]("web")).Limit(0).Service(layer.Func[string, string](repeat))
	_, err := svc.Call(t.Context(), "a")
	require.EqualError(t, err, "limit web: not ready: 0 of 0 in flight")
}

func TestNilArgumentsPanicInTheConstructor(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	key := func(string) (string, error) { return "", nil }
	mk := func(context.Context, string) layer.Service[string, string] { return leaf }
	for want, construct := range map[string]func(){
		"layer: Router: nil key function": func() {
			layer.Router(nil, func(string) layer.Service[string, string] { return leaf })
		},
		"layer: Router: nil Make":            func() { layer.Router[string, string, string](key, nil) },
		"layer: Lazy: nil function":          func() { layer.Lazy[string, string](nil) },
		"layer: Failover: nil service":       func() { layer.Failover[string, string](leaf, nil, 0) },
		"layer: Stack: nil service":          func() { layer.NewStack[string, string]().Service(nil) },
		"layer: Map: nil service":            func() { layer.Map[int, int, string, string](nil, nil, nil) },
		"layer: Map: nil function":           func() { layer.Map[int, int, string, string](leaf, nil, nil) },
		"layer: NewReloadable: nil function": func() { layer.NewReloadable[string, string, string](t.Context(), "", nil) },
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
		"layer: WithReplayer: nil Resend":       func() { layer.WithReplayer[string, string](nil) },
	} {
		require.PanicsWithValue(t, want, construct)
	}
}
