package layer_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// shedRig is a Shed over a limit. Its requests stay in flight until end.
type shedRig struct {
	t    *testing.T
	svc  layer.Service[int, *response]
	open []*response
}

func newShedRig(t *testing.T, slots int, opts ...layer.Option[*response]) *shedRig {
	t.Helper()
	leaf := layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("some words"), nil })
	return &shedRig{t: t, svc: layer.Shed[int](layer.ShedPolicy{}, opts...)(layer.Limit[int, *response](slots)(leaf))}
}

// send returns "admitted" or the layer that rejected the request.
func (r *shedRig) send(p layer.Priority) string {
	rsp, err := r.svc.Call(layer.WithPriority(r.t.Context(), p), 1)
	if err == nil {
		r.open = append(r.open, rsp)
		return "admitted"
	}
	var where *layer.Error
	require.ErrorAs(r.t, err, &where)
	require.ErrorIs(r.t, err, layer.ErrNotReady)
	return where.Layer
}

// fill sends requests until one is not admitted, and returns the number of admitted ones.
func (r *shedRig) fill(p layer.Priority) (n int, by string) {
	for by = r.send(p); by == "admitted"; by = r.send(p) {
		n++
	}
	return n, by
}

// end ends n responses.
func (r *shedRig) end(n int) {
	for range n {
		require.NoError(r.t, r.open[0].Body.Close())
		r.open = r.open[1:]
	}
}

func (r *shedRig) state(key string) any { return layer.Describe(r.svc).State.Get(key) }

func TestShedShares(t *testing.T) {
	r := newShedRig(t, 100)
	for _, tt := range []struct {
		p    layer.Priority
		want int
		by   string
	}{
		{layer.PriorityBulk, 50, "shed"}, {layer.PriorityLow, 25, "shed"},
		{layer.PriorityNormal, 15, "shed"}, {layer.PriorityCritical, 10, "limit"},
	} {
		n, by := r.fill(tt.p)
		require.Equal(t, tt.want, n, tt.p)
		require.Equal(t, tt.by, by, tt.p)
	}
	require.EqualValues(t, 100, r.state("capacity"))
	require.EqualValues(t, 3, r.state("rejected"))
	require.EqualValues(t, 1, r.state("rejected_bulk"))
	require.Nil(t, r.state("rejected_critical"))
	r.end(51)
	require.Equal(t, "admitted", r.send(layer.PriorityBulk))
	require.Equal(t, "shed", r.send(layer.PriorityBulk))
}

// saturated returns the sum of n and math.MaxInt, at most math.MaxInt64.
func saturated(n uint64) int64 { return int64(min(n+math.MaxInt, math.MaxInt64)) }

func TestShedCapacity(t *testing.T) {
	type s = layer.Stack[int, *response]
	leaf := layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf(""), nil })
	for name, tt := range map[string]struct {
		below func(s) s
		want  any
	}{
		"limit":          {func(st s) s { return st.Limit(7) }, int64(7)},
		"adaptive limit": {func(st s) s { return st.AdaptiveLimit(layer.AdaptivePolicy{Min: 5, Max: 5}) }, int64(5)},
		"queue":          {func(st s) s { return st.Queue(10, 0).Limit(7) }, int64(17)},
		"long queue":     {func(st s) s { return st.Queue(math.MaxInt, 0).Limit(7) }, saturated(7)},
		"high limit":     {func(st s) s { return st.Queue(10, 0).Limit(math.MaxInt) }, saturated(10)},
		"others between": {func(st s) s { return st.Drain(layer.NewDrainer()).Limit(3) }, int64(3)},
		"queue alone":    {func(st s) s { return st.Queue(10, 0) }, nil},
		"none":           {func(st s) s { return st }, nil},
		"nested stack":   {func(st s) s { return st.With("inner", s{}.Queue(2, 0).Limit(7).Layer()) }, int64(9)},
		"own layer": {func(st s) s {
			own := func(next layer.Service[int, *response]) layer.Service[int, *response] {
				return struct{ layer.Service[int, *response] }{next}
			}
			return st.With("own", own).Limit(7)
		}, int64(7)},
	} {
		svc := tt.below(layer.NewStack[int, *response]().Shed(layer.ShedPolicy{})).Service(leaf)
		require.Equal(t, tt.want, layer.Describe(svc).State.Get("capacity"), name)
		_, err := svc.Call(layer.WithPriority(t.Context(), layer.PriorityBulk), 1)
		require.NoError(t, err, name)
	}
}

func TestShedPanics(t *testing.T) {
	svc := layer.Shed[string, int](layer.ShedPolicy{})(layer.Func[string, int](func(_ context.Context, how string) (int, error) {
		if how == "panic" {
			panic(how)
		}
		runtime.Goexit()
		return 0, nil
	}))
	require.PanicsWithValue(t, "panic", func() { _, _ = svc.Call(t.Context(), "panic") })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = svc.Call(t.Context(), "goexit")
	}()
	<-done
	require.Zero(t, inFlight(svc))
}

func TestShedReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShedRig(t, 10)
		r.fill(layer.PriorityNormal)
		r.fill(layer.PriorityCritical)
		require.ErrorIs(t, layer.Poll(r.svc), layer.ErrNotReady)
		r.end(1)
		require.Equal(t, "shed", r.send(layer.PriorityNormal))
		require.NoError(t, layer.Poll(r.svc))
	})
}

func TestShedErrors(t *testing.T) {
	rejected := byLabel{}
	r := newShedRig(t, 4, layer.WithTarget[*response]("web"), layer.WithMetrics[*response](layer.Instruments{LayerRejections: rejected}))
	r.send(layer.PriorityLow)
	r.send(layer.PriorityCritical)
	r.send(layer.PriorityCritical)
	_, err := r.svc.Call(layer.WithPriority(t.Context(), layer.PriorityLow), 1)
	require.EqualError(t, err, "shed web: not ready: the share of priority low is full")
	require.EqualValues(t, 1, *rejected["shed"])
}

func TestShedPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy layer.ShedPolicy
		wrong  string
		shares [3]int // of 100: normal, low, bulk
	}{
		{layer.ShedPolicy{}, "", [3]int{90, 75, 50}},
		{layer.ShedPolicy{Normal: 1, Low: 1, Bulk: 1}, "", [3]int{100, 100, 100}},
		{layer.ShedPolicy{Normal: 0.4}, "", [3]int{40, 40, 40}},
		{layer.ShedPolicy{Bulk: 0.1}, "", [3]int{90, 75, 10}},
		{layer.ShedPolicy{Normal: -1}, "Normal is -1, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Low: 2}, "Low is 2, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Bulk: math.NaN()}, "Bulk is NaN, must be 0 to 1", [3]int{}},
		{layer.ShedPolicy{Normal: 0.5, Low: 0.6}, "Low is 0.6, must be at most Normal, 0.5", [3]int{}},
		{layer.ShedPolicy{Bulk: 0.8}, "Bulk is 0.8, must be at most Low, 0.75", [3]int{}},
	} {
		err := tt.policy.Validate()
		if tt.wrong != "" {
			require.EqualError(t, err, "ShedPolicy."+tt.wrong)
			continue
		}
		require.NoError(t, err, "%+v", tt.policy)
		r := newShedRig(t, 100)
		r.svc = layer.Shed[int, *response](tt.policy)(r.svc.(interface {
			Next() layer.Service[int, *response]
		}).Next())
		for i, p := range []layer.Priority{layer.PriorityNormal, layer.PriorityLow, layer.PriorityBulk} {
			n, _ := r.fill(p)
			require.Equal(t, tt.shares[i], n, "%v of %+v", p, tt.policy)
			r.end(n)
		}
	}
}
