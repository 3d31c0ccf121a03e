package simulation

import (
	"context"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
)

// unlimitedCopies sends a second attempt after 50 ms, as policies of hedging without a budget do. It
// returns the first success.
func unlimitedCopies(next layer.Service[*job, *job]) layer.Service[*job, *job] {
	return layer.Func[*job, *job](func(ctx context.Context, j *job) (*job, error) {
		ctx, cancel := context.WithCancel(layer.WithAttempts(ctx, new(layer.Attempts)))
		defer cancel()
		ended := make(chan error, 2)
		attempt := func() {
			_, err := next.Call(ctx, j)
			ended <- err
		}
		go attempt()
		timer := time.NewTimer(50 * ms)
		defer timer.Stop()
		select {
		case err := <-ended:
			return j, err
		case <-timer.C:
		}
		go attempt()
		err := <-ended
		if err != nil {
			err = <-ended
		}
		return j, err
	})
}

// gradient2 is the limit of Netflix's concurrency-limits with its defaults. It gets the mean latency of
// each second, as from their WindowedLimit.
func gradient2(next layer.Service[*job, *job]) layer.Service[*job, *job] {
	var mu sync.Mutex
	g := gradientLimit{limit: leastGradient, end: time.Now().Add(sec)}
	return layer.Func[*job, *job](func(ctx context.Context, j *job) (*job, error) {
		mu.Lock()
		if g.inFlight >= int(g.limit) {
			mu.Unlock()
			return nil, layer.ErrNotReady
		}
		g.inFlight++
		g.busiest = max(g.busiest, g.inFlight)
		mu.Unlock()
		began := time.Now()
		rsp, err := next.Call(ctx, j)
		mu.Lock()
		defer mu.Unlock()
		g.inFlight--
		g.sum += time.Since(began).Seconds()
		g.samples++
		if !time.Now().Before(g.end) && g.samples >= 10 {
			g.update(g.sum / g.samples)
			g.sum, g.samples, g.busiest, g.end = 0, 0, 0, time.Now().Add(sec)
		}
		return rsp, err
	})
}

const leastGradient, mostGradient = 20.0, 200.0

type gradientLimit struct {
	limit             float64
	inFlight, busiest int
	sum, samples      float64 // of this window
	end               time.Time
	long, updates     float64 // the average over all windows
}

// update adjusts the limit to the mean latency of a window.
func (g *gradientLimit) update(short float64) {
	const queue, tolerance, smoothing, window, warmup = 4.0, 1.5, 0.2, 600.0, 10.0
	if g.updates++; g.updates <= warmup {
		g.long += (short - g.long) / g.updates
	} else {
		g.long += (short - g.long) * 2 / (window + 1)
	}
	if g.long > 2*short {
		g.long *= 0.95
	}
	if float64(g.busiest) >= g.limit/2 {
		gradient := min(max(tolerance*g.long/short, 0.5), 1)
		g.limit = min(max(g.limit*(1-smoothing)+(g.limit*gradient+queue)*smoothing, leastGradient), mostGradient)
	}
}

// firstIn lets requests wait in the order of their arrival, for up to 3 s, until one of ten slots is
// free.
func firstIn(next layer.Service[*job, *job]) layer.Service[*job, *job] {
	slots := make(chan struct{}, 10)
	return layer.Func[*job, *job](func(ctx context.Context, j *job) (*job, error) {
		wait := time.NewTimer(3 * sec)
		defer wait.Stop()
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			return next.Call(ctx, j)
		case <-wait.C:
			return nil, layer.ErrNotReady
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}
