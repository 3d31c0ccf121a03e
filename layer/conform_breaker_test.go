package layer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The checks let more requests fail than the default policy allows.
func TestConformBreaker(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	patient := layer.BreakerPolicy{ConsecutiveFailures: 1 << 30}
	for name, spec := range map[string]layertest.Layer{
		"closed":    {Layer: layer.Breaker[Q, R](patient), NoAllocs: true},
		"ratio":     {Layer: layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 1e-9, MinRequests: 1_000_000}), NoAllocs: true},
		"at return": {Layer: layer.Breaker[Q](patient, layer.WithCompletion(layer.AtReturn[R])), AtReturn: true, NoAllocs: true},
		"no rules":  {Layer: layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: -1}), Transparent: true},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
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
	time.Sleep(time.Nanosecond) // the back-off
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

// While a probe is in flight, a breaker is a service without capacity.
func TestConformBreakerProbing(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Service{
		New: func(ctx context.Context) layer.Service[Q, R] {
			s := &trippedBreaker{over: ctx.Done()}
			s.Service = layer.Breaker[Q, R](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: 1, Max: 1}})(
				layer.Func[Q, R](func(_ context.Context, req Q) (R, error) {
					if serve := s.serve.Load(); serve != nil {
						return nil, (*serve)()
					}
					return &layertest.Response{ID: req.ID}, nil
				}))
			return s
		},
		Fill: func(svc layer.Service[Q, R]) func() { return svc.(*trippedBreaker).fill() },
	})
}
