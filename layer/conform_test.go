package layer_test

import (
	"context"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// TestConform checks each layer of the catalog by itself.
func TestConform(t *testing.T) {
	for _, e := range catalog() {
		t.Run(e.name, func(t *testing.T) {
			if e.isLayer() {
				t.Run("alone", func(t *testing.T) { layertest.Run(t, e.spec()) })
			}
			for name, spec := range e.variants {
				t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
			}
			for name, spec := range e.services {
				t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
			}
			if e.disabled != nil {
				t.Run("disabled", func(t *testing.T) {
					inner := layertest.NewMock[kitQ, kitR]()
					assert.Same(t, inner, e.disabled(inner), "the layer is left out, so that it costs nothing")
					layertest.Run(t, layertest.Layer{Layer: e.disabled, Transparent: true})
				})
			}
		})
	}
}

func TestConformStack(t *testing.T) {
	for name, spec := range map[string]layertest.Layer{
		"empty": {Layer: layer.NewStack[kitQ, kitR]().Layer(), Transparent: true},
		"timeout, queue, limit": {
			Layer: layer.NewStack[kitQ, kitR]().Timeout(time.Minute).Queue(16, 3*time.Second).Limit(4).Layer(),
			Limit: 4, Queue: 16, MaxWait: 3 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}

// A service that is always ready has no Fill.
func TestConformFunc(t *testing.T) {
	layertest.Run(t, layertest.Service{New: func(context.Context) kitS { return kitAnswerWithBody }})
}

// kitAnswerWithBody is like kitAnswer.
var kitAnswerWithBody = layer.Func[kitQ, kitR](func(_ context.Context, req kitQ) (kitR, error) {
	return &layertest.Response{ID: req.ID, Body: io.NopCloser(strings.NewReader("hello"))}, nil
})

// TestMatrix checks every ordered pair of the catalog's layers. Unless GOTOWER_TESTS is "full",
// each layer is once the outer and once the inner one of a pair.
func TestMatrix(t *testing.T) {
	layers := catalogLayers()
	step := len(layers)
	if os.Getenv("GOTOWER_TESTS") == "full" {
		step = 1
	}
	for i, outer := range layers {
		for j, inner := range layers {
			if (i+j)%step != 0 {
				continue
			}
			t.Run(outer.name+" over "+inner.name, func(t *testing.T) { layertest.Run(t, over(outer.spec(), inner.spec())) })
		}
	}
}

// over returns outer over inner with its contract.
func over(outer, inner layertest.Layer) layertest.Layer {
	both := layertest.Layer{
		Limit:         max(outer.Limit, inner.Limit),
		Queue:         outer.Queue,
		MaxWait:       outer.MaxWait,
		AtReturn:      outer.AtReturn || inner.AtReturn,
		OutlivesInner: outer.OutlivesInner || inner.OutlivesInner,
		MaxAttempts:   max(outer.MaxAttempts, inner.MaxAttempts),
		Pause:         max(outer.Pause, inner.Pause),
		QueueBelow:    outer.Limit > 0 && inner.Queue > 0,
		Callers:       50, // because there are many pairs
	}
	if outer.Layer != nil && inner.Layer != nil {
		both.Layer = func(next kitS) kitS { return outer.Layer(inner.Layer(next)) }
	} else {
		both.New = func(ctx context.Context, next kitS) kitS {
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

func applied(ctx context.Context, l layertest.Layer, next kitS) kitS {
	if l.New != nil {
		return l.New(ctx, next)
	}
	return l.Layer(next)
}

// trippedBreaker is a breaker with a probe in flight, after it was filled.
type trippedBreaker struct {
	layer.Service[*layertest.Request, *layertest.Response]
	serve atomic.Pointer[func() error] // nil: well
	over  <-chan struct{}
}

func (s *trippedBreaker) fill() (free func()) {
	hold := make(chan struct{})
	fails := func() error { return errBreaker }
	probe := func() error {
		select {
		case <-hold:
		case <-s.over:
		}
		return layer.ErrInjected // decides nothing, and gives its place
	}
	s.serve.Store(&fails)
	s.Call(context.Background(), &layertest.Request{})
	time.Sleep(time.Hour) // the back-off
	s.serve.Store(&probe)
	go s.Call(context.Background(), &layertest.Request{})
	for layer.Poll(s.Service) == nil {
		time.Sleep(time.Nanosecond)
	}
	return func() {
		s.serve.Store(nil)
		close(hold)
	}
}

// probingBreaker is a breaker that has no capacity while a probe is in flight.
func probingBreaker() layertest.Service {
	policy := layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}}
	return layertest.Service{
		New: func(ctx context.Context) kitS {
			s := &trippedBreaker{over: ctx.Done()}
			s.Service = layer.Breaker[kitQ, kitR](policy)(layer.Func[kitQ, kitR](func(ctx context.Context, req kitQ) (kitR, error) {
				if serve := s.serve.Load(); serve != nil {
					return nil, (*serve)()
				}
				return kitAnswer(ctx, req)
			}))
			return s
		},
		Fill: func(svc kitS) func() { return svc.(*trippedBreaker).fill() },
	}
}

// drainedService is a service that can be closed, by its Drainer.
func drainedService() layertest.Service {
	drainers := make(map[kitS]*layer.Drainer)
	return layertest.Service{
		New: func(context.Context) kitS {
			d := layer.NewDrainer()
			svc := layer.Drain[kitQ, kitR](d)(kitAnswer)
			drainers[svc] = d
			return svc
		},
		Close: func(svc kitS) {
			if err := drainers[svc].Drain(context.Background()); err != nil {
				panic(err)
			}
		},
	}
}
