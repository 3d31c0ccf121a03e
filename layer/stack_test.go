package layer_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// tagged puts its tag before the request.
func tagged(tag string) layer.Layer[string, string] {
	return func(next layer.Service[string, string]) layer.Service[string, string] {
		return layer.Func[string, string](func(ctx context.Context, req string) (string, error) {
			return next.Call(ctx, req+tag)
		})
	}
}

func repeat(_ context.Context, req string) (string, error) { return req, nil }

func TestStackOrder(t *testing.T) {
	svc := layer.NewStack[string, string]().With("a", tagged("a")).With("b", tagged("b")).
		Service(layer.Func[string, string](repeat))
	got, err := svc.Call(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "ab", got)
}

func TestStackIsAValue(t *testing.T) {
	base := layer.NewStack[string, string]().With("a", tagged("a"))
	b, c := base.With("b", tagged("b")), base.With("c", tagged("c"))
	leaf := layer.Func[string, string](repeat)
	for want, stack := range map[string]layer.Stack[string, string]{"a": base, "ab": b, "ac": c} {
		got, err := stack.Service(leaf).Call(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	nested, err := layer.Stack[string, string]{}.With("both", b.Layer()).With("none", nil).Service(leaf).Call(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "ab", nested)
}

func TestStackEmpty(t *testing.T) {
	var stack layer.Stack[string, string]
	got, err := stack.Service(layer.Func[string, string](repeat)).Call(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, "x", got)
}

// forest is a service with children.
type forest struct{ layer.Func[string, string] }

func (forest) Describe() layer.Node {
	return layer.Node{
		Name:     "forest",
		State:    layer.State{{Key: "trees", Value: 2}},
		Children: []layer.Node{{Name: "oak", State: layer.State{{Key: "age", Value: time.Hour}}}, {Name: "elm"}},
	}
}

func TestDescribeCompositions(t *testing.T) {
	svc := layer.NewStack[string, string]().
		Timeout(time.Second).
		With("own", tagged("a")). // does not describe itself
		With("two", layer.NewStack[string, string]().Queue(5, time.Minute).Limit(1).Layer()).
		Service(layer.Limit[string, string](3)(forest{}))

	require.Equal(t, `timeout    after=1s
own
queue      waiting=0 capacity=5 max_wait=1m0s
limit      in_flight=0 max=1
limit      in_flight=0 max=3
forest     trees=2
  oak        age=1h0m0s
  elm
`, layer.Describe(svc).String())

	got, err := json.Marshal(layer.Describe(svc))
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"timeout","state":{"after":"1s"},"next":
		{"name":"own","next":
		{"name":"queue","state":{"waiting":0,"capacity":5,"max_wait":"1m0s"},"next":
		{"name":"limit","state":{"in_flight":0,"max":1},"next":
		{"name":"limit","state":{"in_flight":0,"max":3},"next":
		{"name":"forest","state":{"trees":2},"children":[{"name":"oak","state":{"age":"1h0m0s"}},{"name":"elm"}]}}}}}}`,
		string(got))
}

// A layer that does nothing is shown by its name without a state, in particular without the
// state of the layer below.
func TestDescribeDisabledLayers(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	svc := layer.NewStack[string, string]().Timeout(0).Queue(0, 0).Limit(5).
		Breaker(layer.BreakerPolicy{ConsecutiveFailures: -1}).Service(leaf)
	require.Equal(t, "timeout\nqueue\nlimit      in_flight=0 max=5\nbreaker\nlayer.Func\n", layer.Describe(svc).String())

	inner := layer.NewStack[string, string]().Limit(3).With("own", tagged("a")).Service(leaf)
	svc = layer.NewStack[string, string]().Limit(1).Timeout(0).Service(inner)
	require.Equal(t, "limit      in_flight=0 max=1\ntimeout\nlimit      in_flight=0 max=3\nown\nlayer.Func\n", layer.Describe(svc).String())

	_, err := layer.NewStack[string, string]().Timeout(0).Service(forest{leaf}).Call(t.Context(), "x")
	require.NoError(t, err)
}

func TestStateNonJSONNumbers(t *testing.T) {
	leaf := layer.Func[string, string](repeat)
	svc := layer.NewStack[string, string]().RateLimit(math.Inf(1), 3).
		With("rate_by", layer.RateLimitBy[string, string, string](func(s string) string { return s }, math.Inf(1), 3, 1)).
		Service(leaf)
	got, err := json.Marshal(layer.Describe(svc))
	require.NoError(t, err)
	require.Contains(t, string(got), `"per_second":"+Inf"`)
	require.Equal(t, 2, strings.Count(string(got), `"+Inf"`))
	require.Contains(t, layer.Describe(svc).String(), "per_second=+Inf")

	got, err = json.Marshal(layer.State{{Key: "a", Value: math.NaN()}, {Key: "b", Value: math.Inf(-1)}, {Key: "c", Value: 0.5}})
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"NaN","b":"-Inf","c":0.5}`, string(got))
}

func TestStateMarshalError(t *testing.T) {
	_, err := json.Marshal(layer.Node{Name: "x", State: layer.State{{Key: "bad", Value: func() {}}}})
	require.ErrorContains(t, err, "state bad")
}

func TestRouteFromContext(t *testing.T) {
	require.Nil(t, layer.RouteFromContext(t.Context()))
	r := &layer.Route{Name: "vote"}
	require.Same(t, r, layer.RouteFromContext(layer.WithRoute(t.Context(), r)))
}
