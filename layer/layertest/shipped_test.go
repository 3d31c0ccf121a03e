package layertest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/layer"
)

// total is a counter for all labels together.
type total struct{ n *atomic.Int64 }

func (c total) With(...string) metrics.Counter { return c }
func (c total) Add(delta float64)              { c.n.Add(int64(delta)) }

// The layers of package layer with other bounds than in TestShippedLayers.
func TestRunShipped(t *testing.T) {
	type (
		Q = *Request
		R = *Response
	)
	var ended atomic.Int64
	outcomes := layer.Instruments{Responses: total{&ended}}
	for name, spec := range map[string]Layer{
		"no timeout":            {Layer: layer.Timeout[Q, R](0), Transparent: true},
		"limit of one":          {Layer: layer.Limit[Q, R](1), Limit: 1},
		"limit at return":       {Layer: layer.Limit[Q](8, layer.WithCompletion(layer.AtReturn[R])), Limit: 8, AtReturn: true},
		"queue":                 {Layer: layer.Queue[Q, R](maxWaiters, time.Hour), Queue: maxWaiters, MaxWait: time.Hour, NoAllocs: true},
		"queue of one":          {Layer: layer.Queue[Q, R](1, 3*time.Second), Queue: 1, MaxWait: 3 * time.Second},
		"queue without maximum": {Layer: layer.Queue[Q, R](16, 0), Queue: 16},
		"metrics":               {Layer: layer.Metrics[Q, R](outcomes), Ended: func() int { return int(ended.Load()) }},
		"empty stack":           {Layer: layer.NewStack[Q, R]().Layer(), Transparent: true},
		"stack": {
			Layer: layer.NewStack[Q, R]().Timeout(time.Minute).Queue(16, 3*time.Second).Limit(4).Layer(),
			Limit: 4, Queue: 16, MaxWait: 3 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) { Run(t, short(spec)) })
	}
}

// A service that is always ready has no Fill.
func TestRunShippedServices(t *testing.T) {
	answer := layer.Func[*Request, *Response](func(_ context.Context, req *Request) (*Response, error) {
		return &Response{ID: req.ID, Body: newRequestBody(req.ID)}, nil
	})
	for name, svc := range map[string]service{
		"func": answer,
		"router": layer.Router(func(req *Request) (int, error) { return req.ID, nil },
			func(int) service { return answer }),
	} {
		t.Run(name, func(t *testing.T) {
			Run(t, Service{New: func(context.Context) service { return svc }})
		})
	}
}
