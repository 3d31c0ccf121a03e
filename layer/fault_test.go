package layer_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errFault = errors.New("connection reset by the experiment")

// turns returns the given numbers one after the other.
func turns(numbers ...float64) func() float64 {
	i := -1
	return func() float64 { i = (i + 1) % len(numbers); return numbers[i] }
}

func TestFaultInjectionFraction(t *testing.T) {
	injected := byLabel{}
	svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{
		Match:    func(req int) bool { return req%2 == 0 },
		Fraction: 0.25, Err: errFault, TTL: time.Minute, Rand: turns(0.2, 0.25, 0.5, 0.9),
	}, layer.WithMetrics[int](layer.Instruments{FaultsInjected: injected}), layer.WithTarget[int]("web"))(layer.Func[int, int](echo))
	var failed []int
	for i := range 16 {
		got, err := svc.Call(t.Context(), i)
		if err == nil {
			require.Equal(t, i, got)
			continue
		}
		failed = append(failed, i)
		require.ErrorIs(t, err, layer.ErrInjected)
		require.ErrorIs(t, err, errFault)
		require.NotErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "fault web: injected fault: connection reset by the experiment")
	}
	require.Equal(t, []int{0, 8}, failed)
	require.EqualValues(t, 2, *injected["error"])
	require.Zero(t, *injected["delay"])
	state := layer.Describe(svc).State
	require.EqualValues(t, 2, state.Get("injected"))
	require.InDelta(t, 0.25, state.Get("share"), 0)
}

func TestFaultInjectionDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		injected := byLabel{}
		svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{
			Fraction: 1, Delay: time.Second, Jitter: 2 * time.Second, TTL: time.Minute, Rand: turns(0.5, 0),
		}, layer.WithMetrics[int](layer.Instruments{FaultsInjected: injected}))(layer.Func[int, int](echo))
		for _, want := range []time.Duration{2 * time.Second, time.Second} {
			start := time.Now()
			got, err := svc.Call(t.Context(), 7)
			require.NoError(t, err)
			require.Equal(t, 7, got)
			require.Equal(t, want, time.Since(start))
		}
		require.EqualValues(t, 2, *injected["delay"])
		require.EqualValues(t, 2, layer.Describe(svc).State.Get("delayed"))
		require.EqualValues(t, 0, layer.Describe(svc).State.Get("failed"))
	})
}

func TestFaultInjectionErrorAfterDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{
			Fraction: 1, Delay: time.Second, Err: layer.ErrInjected, TTL: time.Minute,
		})(layer.Func[int, int](func(context.Context, int) (int, error) { panic("it is not sent") }))
		start := time.Now()
		_, err := svc.Call(t.Context(), 7)
		require.EqualError(t, err, "fault: injected fault")
		require.ErrorIs(t, err, layer.ErrInjected)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestFaultInjectionDelayCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{Fraction: 1, Delay: time.Hour, TTL: 24 * time.Hour})(layer.Func[int, int](echo))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
		defer cancel()
		start := time.Now()
		_, err := svc.Call(ctx, 7)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, context.Cause(ctx))
		require.ErrorIs(t, err, layer.ErrInjected, "it does not count against the service")
		require.NotErrorIs(t, err, layer.ErrNotReady)
	})
}

func TestFaultInjectionCanceledCaller(t *testing.T) {
	svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{Fraction: 1, Err: errFault, TTL: time.Minute})(layer.Func[int, int](echo))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	_, err := svc.Call(ctx, 7)
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NotErrorIs(t, err, layer.ErrInjected)
	require.EqualValues(t, 0, layer.Describe(svc).State.Get("injected"))
}

func TestFaultInjectionTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		matched := 0
		faults := layer.FaultInjection[int, int](layer.FaultPolicy[int]{
			Match: func(int) bool { matched++; return true }, Fraction: 1, Err: errFault, TTL: time.Minute,
		})
		svc := faults(layer.Func[int, int](echo))
		time.Sleep(time.Minute - time.Nanosecond)
		_, err := svc.Call(t.Context(), 1)
		require.ErrorIs(t, err, errFault)
		require.Equal(t, time.Duration(0), layer.Describe(svc).State.Get("ends_in"), "rounded")

		late := faults(layer.Func[int, int](echo))
		time.Sleep(time.Nanosecond)
		for range 3 {
			for _, svc := range []layer.Service[int, int]{svc, late} {
				_, err = svc.Call(t.Context(), 1)
				require.NoError(t, err, "it counts from the call of FaultInjection")
			}
		}
		require.Equal(t, 1, matched, "after the TTL, Match is not called")
	})
}

func TestFaultInjectionDelayAtTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{Fraction: 1, Delay: time.Hour, TTL: time.Minute})(layer.Func[int, int](echo))
		time.Sleep(10 * time.Second)
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 50*time.Second, time.Since(start))
	})
}

func TestFaultPolicyValidate(t *testing.T) {
	fine := layer.FaultPolicy[int]{Fraction: 0.5, Err: errFault, TTL: time.Minute}
	require.NoError(t, fine.Validate())
	for want, change := range map[string]func(*layer.FaultPolicy[int]){
		"FaultPolicy.Fraction is NaN, must be 0 to 1":    func(p *layer.FaultPolicy[int]) { p.Fraction = math.NaN() },
		"FaultPolicy.Delay is -1ns, must be at least 0":  func(p *layer.FaultPolicy[int]) { p.Delay = -1 },
		"FaultPolicy.Jitter is -1ns, must be at least 0": func(p *layer.FaultPolicy[int]) { p.Jitter = -1 },
		"FaultPolicy.TTL is 0s, must be above 0":         func(p *layer.FaultPolicy[int]) { p.TTL = 0 },
		"FaultPolicy: Delay, Jitter or Err must be set":  func(p *layer.FaultPolicy[int]) { p.Err = nil },
	} {
		p := fine
		change(&p)
		require.EqualError(t, p.Validate(), want)
	}
	fine.Fraction = 0
	inner := layer.Func[int, int](echo)
	require.IsType(t, inner, layer.FaultInjection[int, int](fine)(inner))
}

func TestFaultInjectionIsIgnorable(t *testing.T) {
	responses := byLabel{}
	svc := layer.NewStack[int, int]().Metrics(layer.Instruments{Responses: responses}).
		With("fault", layer.FaultInjection[int, int](layer.FaultPolicy[int]{Fraction: 1, Err: errFault, TTL: time.Minute})).
		Service(layer.Func[int, int](echo))
	_, err := svc.Call(t.Context(), 1)
	require.ErrorIs(t, err, errFault)
	require.EqualValues(t, 1, *responses["ignorable"])
	require.Zero(t, *responses["failure"])
}

func TestFaultInjectionRejection(t *testing.T) {
	svc := layer.FaultInjection[int, int](layer.FaultPolicy[int]{Fraction: 1, Err: layer.ErrNotReady, TTL: time.Minute})(layer.Func[int, int](echo))
	_, err := svc.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, layer.ErrInjected)
}
