package layer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

type counter float64

func (c *counter) With(...string) metrics.Counter { return c }
func (c *counter) Add(delta float64)              { *c += counter(delta) }

type gauge float64

func (g *gauge) With(...string) metrics.Gauge { return g }
func (g *gauge) Set(value float64)            { *g = gauge(value) }
func (g *gauge) Add(delta float64)            { *g += gauge(delta) }

type histogram []float64

func (h *histogram) With(...string) metrics.Histogram { return h }
func (h *histogram) Observe(value float64)            { *h = append(*h, value) }

func TestMetricsCountsEveryOutcomeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests, refusals, successes, failures counter
		var flight gauge
		var latency histogram
		svc := layer.Metrics[string, *response](layer.Instruments{
			Requests: &requests, Refusals: &refusals, Successes: &successes, Failures: &failures,
			InFlight: &flight, Latency: &latency,
		}, layer.FailedIf(func(r *response) bool { _, bad := r.Body.(interface{ bad() }); return bad }))(
			layer.Func[string, *response](func(ctx context.Context, how string) (*response, error) {
				time.Sleep(100 * time.Millisecond)
				switch how {
				case "error":
					return nil, errors.New("boom")
				case "refused":
					return nil, errShut
				case "panic":
					panic("boom")
				case "gone":
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return bodyOf("x"), nil
			}))

		rsp, err := svc.Call(t.Context(), "fine")
		require.NoError(t, err)
		require.EqualValues(t, 1, flight)
		require.Zero(t, successes, "not over yet")
		time.Sleep(time.Second)
		_, _ = io.ReadAll(rsp.Body)
		require.EqualValues(t, 1, successes)
		require.Equal(t, histogram{1100}, latency, "to the end of the body")

		_, err = svc.Call(t.Context(), "error")
		require.Error(t, err)
		_, err = svc.Call(t.Context(), "refused")
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.Panics(t, func() { _, _ = svc.Call(t.Context(), "panic") })
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("bored")) })
		_, err = svc.Call(ctx, "gone")
		require.Error(t, err)
		ctx, late := context.WithTimeout(t.Context(), time.Second)
		defer late()
		_, err = svc.Call(ctx, "gone")
		require.Error(t, err)

		require.EqualValues(t, 5, requests)
		require.EqualValues(t, 1, refusals)
		require.EqualValues(t, 3, failures, "the error, the panic and the deadline")
		require.EqualValues(t, 2, successes, "a caller that left tells nothing bad")
		require.Zero(t, flight)
	})
}

func TestMetricsAsksAboutTheResponseWhenItEnded(t *testing.T) {
	var successes, failures counter
	bad := false
	svc := layer.Metrics[int](layer.Instruments{Successes: &successes, Failures: &failures},
		layer.FailedIf(func(*response) bool { return bad }))(
		layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("x"), nil }))
	rsp, err := svc.Call(t.Context(), 1)
	require.NoError(t, err)
	bad = true // as a trailer may say
	_, _ = io.ReadAll(rsp.Body)
	require.EqualValues(t, 1, failures)
	require.Zero(t, successes)
}
