package layer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkHedge(b *testing.B) {
	inner := layer.Func[int, int](echo)
	b.Run("not to be hedged", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{HedgeIf: func(int) bool { return false }})(inner))
	})
	b.Run("no samples", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1_000_000})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil })))
	})
	b.Run("in time", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1, MinDelay: time.Minute})(inner))
	})
	b.Run("in time, a goroutine for each", func(b *testing.B) { call(b, hedgeByGoroutines{inner, time.Minute}) })
	b.Run("in time, inner asks for Done", func(b *testing.B) {
		call(b, layer.Hedge[int, int](layer.HedgePolicy[int]{MinSamples: 1, MinDelay: time.Minute})(hedgeAsking))
	})
	b.Run("in time, a goroutine for each, inner asks for Done", func(b *testing.B) {
		call(b, hedgeByGoroutines{hedgeAsking, time.Minute})
	})
	b.Run("the copy wins", func(b *testing.B) {
		policy := layer.HedgePolicy[int]{MinDelay: 1, MaxDelay: 1, Budget: layer.NewBudget(time.Second, 10, 1_000_000)}
		call(b, layer.Hedge[int, int](policy)(hedgeStuckFirst()))
	})
	b.Run("the copy wins, a goroutine for each", func(b *testing.B) { call(b, hedgeByGoroutines{hedgeStuckFirst(), 1}) })
}

// hedgeAsking is a service that calls methods of its context.
var hedgeAsking = layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
	select {
	case <-ctx.Done():
	default:
	}
	return 1, nil
})

// hedgeStuckFirst does not respond to the first attempt, and responds to the copy at once.
func hedgeStuckFirst() layer.Service[int, int] {
	var n atomic.Int64
	return layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		if n.Add(1)%2 == 0 {
			return 1, nil
		}
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
}

// hedgeByGoroutines is a simpler hedge for comparison. It runs each attempt on a goroutine
// of its own, and returns the first result.
type hedgeByGoroutines struct {
	layer.Service[int, int]

	delay time.Duration
}

func (h hedgeByGoroutines) Call(ctx context.Context, req int) (int, error) {
	type answer struct {
		rsp int
		err error
	}
	ctx, cancel := context.WithCancel(layer.WithAttempts(ctx, new(layer.Attempts)))
	defer cancel()
	answers := make(chan answer, 2)
	send := func() {
		rsp, err := h.Service.Call(ctx, req)
		answers <- answer{rsp, err}
	}
	go send()
	timer := time.NewTimer(h.delay)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.rsp, a.err
	case <-timer.C:
		go send()
	}
	a := <-answers
	return a.rsp, a.err
}
