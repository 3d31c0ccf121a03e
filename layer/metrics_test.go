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

// byLabel counts for each value of one label.
type byLabel map[string]*counter

func (l byLabel) With(labels ...string) metrics.Counter {
	if l[labels[1]] == nil {
		l[labels[1]] = new(counter)
	}
	return l[labels[1]]
}

func (l byLabel) Add(float64)        { panic("the label was not bound") }
func (c *counter) Add(delta float64) { *c += counter(delta) }

type gauge float64

func (g *gauge) With(...string) metrics.Gauge { return g }
func (g *gauge) Set(value float64)            { *g = gauge(value) }
func (g *gauge) Add(delta float64)            { *g += gauge(delta) }

type histogram []float64

func (h *histogram) With(...string) metrics.Histogram { return h }
func (h *histogram) Observe(value float64)            { *h = append(*h, value) }

func TestMetricsOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests, rejections counter
		responses := byLabel{}
		var flight gauge
		var latency histogram
		svc := layer.Metrics[string, *response](layer.Instruments{
			Requests: &requests, Rejections: &rejections, Responses: responses,
			InFlight: &flight, Latency: &latency,
		})(
			layer.Func[string, *response](func(ctx context.Context, how string) (*response, error) {
				time.Sleep(100 * time.Millisecond)
				switch how {
				case "error":
					return nil, errors.New("boom")
				case "rejected":
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
		require.Zero(t, *responses["success"], "not over yet")
		time.Sleep(time.Second)
		_, _ = io.ReadAll(rsp.Body)
		require.EqualValues(t, 1, *responses["success"])
		require.Equal(t, histogram{1100}, latency, "to the end of the body")

		_, err = svc.Call(t.Context(), "error")
		require.Error(t, err)
		_, err = svc.Call(t.Context(), "rejected")
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
		require.EqualValues(t, 1, rejections)
		require.EqualValues(t, 3, *responses["failure"], "the error, the panic and the deadline")
		require.EqualValues(t, 1, *responses["success"])
		require.EqualValues(t, 1, *responses["ignorable"], "a caller that left tells nothing")
		require.Zero(t, flight)
	})
}

func TestMetricsClassifiesAtEnd(t *testing.T) {
	responses := byLabel{}
	bad := false
	svc := layer.Metrics[int](layer.Instruments{Responses: responses},
		layer.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
			if bad && o.Ended {
				return layer.Failure
			}
			return layer.Success
		}))(
		layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("x"), nil }))
	rsp, err := svc.Call(t.Context(), 1)
	require.NoError(t, err)
	bad = true // as a trailer may say
	_, _ = io.ReadAll(rsp.Body)
	require.EqualValues(t, 1, *responses["failure"])
	require.Zero(t, *responses["success"])
}
