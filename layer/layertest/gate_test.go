package layertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

// gate is a service with one slot and without an inner service.
type gate struct {
	wrong fault

	mu     sync.Mutex
	free   int
	closed bool
	moved  chan struct{}
}

const (
	gateReserves fault = "Ready takes the slot"
	gateSleeps   fault = "capacity wakes no waiter"
	gateBlind    fault = "ignores ctx"
	gateLeaks    fault = "leaks the slot of a canceled call"
	gateReopens  fault = "Call ignores that it is closed"
)

func (g *gate) Ready(ctx context.Context) error {
	for {
		g.mu.Lock()
		switch {
		case g.closed:
			g.mu.Unlock()
			return reject(layer.ErrClosed, nil)
		case g.free > 0:
			if g.wrong == gateReserves {
				g.free--
			}
			g.mu.Unlock()
			return nil
		}
		if g.moved == nil {
			g.moved = make(chan struct{})
		}
		moved := g.moved
		g.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *gate) Call(ctx context.Context, _ *Request) (*Response, error) {
	if ctx.Err() != nil && g.wrong != gateBlind {
		return nil, reject(layer.ErrNotReady, context.Cause(ctx))
	}
	g.mu.Lock()
	switch {
	case g.closed && g.wrong != gateReopens:
		g.mu.Unlock()
		return nil, reject(layer.ErrClosed, nil)
	case g.free == 0:
		g.mu.Unlock()
		return nil, reject(layer.ErrNotReady, nil)
	}
	g.free--
	g.mu.Unlock()
	time.Sleep(100 * time.Microsecond)
	if g.wrong != gateLeaks || ctx.Err() == nil {
		g.add(1)
	}
	return &Response{}, nil
}

func (g *gate) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free += n
	if g.moved != nil && g.wrong != gateSleeps {
		close(g.moved)
		g.moved = nil
	}
}

func (s ServiceOf[Req, Rsp]) with(wrong fault) Service {
	is := func(svc service) *gate { return svc.(*gate) }
	return Service{
		New: func(context.Context) service { return &gate{free: 1, wrong: wrong} },
		Fill: func(svc service) func() {
			is(svc).add(-1)
			return func() { is(svc).add(1) }
		},
		Close: func(svc service) {
			is(svc).mu.Lock()
			is(svc).closed = true
			is(svc).mu.Unlock()
			is(svc).add(0)
		},
	}
}

func TestRunGate(t *testing.T) { Run(t, oneOf.with("")) }
