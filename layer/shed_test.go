package layer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// shedRig is a Shed over a service of so many slots, whose requests stay
// until they are told to end.
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

// send returns what became of a request: "admitted", or which layer refused.
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

// fill sends requests until one is not admitted, and returns how many were.
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

func TestShedRefusesTheLowestFirst(t *testing.T) {
	r := newShedRig(t, 100)
	n, by := r.fill(layer.PriorityBulk)
	require.Equal(t, "100 limit", fmt.Sprint(n, " ", by), "nobody else wants the room")
	require.Nil(t, r.state("ceiling_bulk"))
	require.Equal(t, "limit", r.send(layer.PriorityCritical), "now somebody does")
	require.InDelta(t, 50, r.state("ceiling_bulk"), 0)
	require.InDelta(t, 75, r.state("ceiling_low"), 0)
	require.InDelta(t, 90, r.state("ceiling_normal"), 0)
	require.Nil(t, r.state("ceiling_critical"))

	r.end(5)
	for _, p := range []layer.Priority{layer.PriorityBulk, layer.PriorityLow, layer.PriorityNormal} {
		require.Equal(t, "shed", r.send(p), "%v: 95 are in flight", p)
	}
	require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	r.end(11) // 85
	require.Equal(t, "shed", r.send(layer.PriorityLow))
	require.Equal(t, "admitted", r.send(layer.PriorityNormal))
	r.end(20) // 66
	require.Equal(t, "shed", r.send(layer.PriorityBulk))
	require.Equal(t, "admitted", r.send(layer.PriorityLow))
	require.EqualValues(t, 5, r.state("refused"))
	require.EqualValues(t, 2, r.state("refused_bulk"))
	require.Nil(t, r.state("refused_critical"))
}

func TestShedLiftsItsCeilings(t *testing.T) {
	r := newShedRig(t, 100)
	r.fill(layer.PriorityNormal)
	require.Equal(t, "limit", r.send(layer.PriorityCritical))
	for range 100 { // in the time that a request takes
		r.end(1)
		require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	}
	require.InDelta(t, 55, r.state("ceiling_bulk"), 1e-9)
	r.end(68)
	require.NotNil(t, r.state("ceiling_bulk"))
	r.end(5)
	require.Nil(t, r.state("ceiling_bulk"), "there is room for twice as many")
	require.Equal(t, "admitted", r.send(layer.PriorityBulk))
}

// However little room there turned out to be, one request of low priority may
// be there: what ends lifts the ceilings.
func TestShedNeverShutsAPriorityOutForGood(t *testing.T) {
	inner := &gate{}
	svc := layer.Shed[int, int](layer.ShedPolicy{})(inner)
	_, err := svc.Call(layer.WithPriority(t.Context(), layer.PriorityCritical), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.InDelta(t, 1, layer.Describe(svc).State.Get("ceiling_bulk"), 0)
	inner.allow(1)
	_, err = svc.Call(layer.WithPriority(t.Context(), layer.PriorityBulk), 1)
	require.NoError(t, err)
	require.Nil(t, layer.Describe(svc).State.Get("ceiling_bulk"))
}

func TestShedLearnsOnlyFromWantOfRoom(t *testing.T) {
	boom := errors.New("boom")
	var answer error
	svc := layer.Shed[context.CancelFunc, int](layer.ShedPolicy{})(
		layer.Func[context.CancelFunc, int](func(_ context.Context, cancel context.CancelFunc) (int, error) {
			if errors.Is(answer, context.Canceled) {
				cancel()
			}
			return 0, answer
		}))
	for _, answer = range []error{boom, layer.ErrClosed, layer.ErrTimeout, errors.Join(layer.ErrNotReady, context.Canceled)} {
		ctx, cancel := context.WithCancel(layer.WithPriority(t.Context(), layer.PriorityCritical))
		_, err := svc.Call(ctx, cancel)
		require.ErrorIs(t, err, answer)
		cancel()
		require.Nil(t, layer.Describe(svc).State.Get("ceiling_bulk"), "%v", answer)
	}
	require.Zero(t, inFlight(svc))
}

func TestShedCountsOutWhateverHappens(t *testing.T) {
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

func TestShedIsReadyForTheHighest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShedRig(t, 10)
		r.fill(layer.PriorityNormal)
		require.Equal(t, "limit", r.send(layer.PriorityCritical))
		require.ErrorIs(t, layer.Poll(r.svc), layer.ErrNotReady)
		r.end(1)
		require.Equal(t, "shed", r.send(layer.PriorityNormal))
		require.NoError(t, layer.Poll(r.svc))
	})
}

func TestShedRefusalsSayWhy(t *testing.T) {
	refused := byLabel{}
	r := newShedRig(t, 4, layer.WithTarget[*response]("web"), layer.WithMetrics[*response](layer.Instruments{LayerRejections: refused}))
	r.fill(layer.PriorityNormal)
	r.send(layer.PriorityCritical)
	_, err := r.svc.Call(layer.WithPriority(t.Context(), layer.PriorityLow), 1)
	require.EqualError(t, err, "shed web: not ready: priority low: the room that is left is for higher ones")
	require.EqualValues(t, 1, *refused["shed"])
}

func TestShedDoesNotRaiseACeilingForAnotherRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		svc := layer.Shed[bool, int](layer.ShedPolicy{})(layer.Func[bool, int](func(_ context.Context, refuse bool) (int, error) {
			if refuse {
				return 0, layer.ErrNotReady
			}
			<-hold
			return 0, nil
		}))
		critical := layer.WithPriority(t.Context(), layer.PriorityCritical)
		for range 2 {
			for range 10 {
				go func() { _, _ = svc.Call(critical, false) }()
			}
			synctest.Wait()
			_, err := svc.Call(critical, true)
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.InDelta(t, 5, layer.Describe(svc).State.Get("ceiling_bulk"), 0)
		}
		close(hold)
	})
}
