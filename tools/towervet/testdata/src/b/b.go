package b

import (
	"context"
	"net"

	"github.com/gotower/gotower/layer"
)

func waits(ctx context.Context, svc layer.Service[int, int]) (int, error) {
	if err := svc.Ready(ctx); err != nil { // want `Ready reserves nothing for the Call that follows`
		return 0, err
	}
	return svc.Call(ctx, 1)
}

func calls(ctx context.Context, svc layer.Service[int, int]) (int, error) { return svc.Call(ctx, 1) }

func asks(ctx context.Context, svc layer.Service[int, int]) error { return svc.Ready(ctx) }

func others(ctx context.Context, a, b layer.Service[int, int]) (int, error) {
	if a.Ready(ctx) != nil {
		return b.Call(ctx, 1)
	}
	return 0, nil
}

func serve(ctx context.Context, l net.Listener, svc layer.Service[net.Conn, int]) error {
	for svc.Ready(ctx) == nil {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _, _ = svc.Call(ctx, c) }()
	}
	return nil
}

func polls(ctx context.Context, svc layer.Service[int, int]) (int, error) {
	if layer.Poll(svc) != nil { // want `Ready reserves nothing for the Call that follows`
		return 0, layer.ErrNotReady
	}
	return svc.Call(ctx, 1)
}

type holder struct{ all []layer.Service[int, int] }

func (h *holder) indexed(ctx context.Context, p *layer.Service[int, int]) {
	_ = h.all[0].Ready(ctx) // want `Ready reserves nothing for the Call that follows`
	_ = h.all[1].Ready(ctx)
	_, _ = ((h.all)[0]).Call(ctx, 1)
	_ = layer.Poll[int, int](*p) // want `Ready reserves nothing for the Call that follows`
	_, _ = (*p).Call(ctx, 1)
}

func written(ctx context.Context, svc layer.Service[int, int]) func() (int, error) {
	return func() (int, error) {
		switch {
		default:
			_ = svc.Ready(ctx) // want `Ready reserves nothing for the Call that follows`
			return svc.Call(ctx, 1)
		}
	}
}

func generic[Req, Rsp any](ctx context.Context, svc layer.Service[Req, Rsp], req Req) (Rsp, error) {
	if err := svc.Ready(ctx); err != nil { // want `Ready reserves nothing for the Call that follows`
		var none Rsp
		return none, err
	}
	return svc.Call(ctx, req)
}

// What is ready is told by one function, and what is asked by another.
func handlers(svc layer.Service[int, int]) (ready, call func(context.Context)) {
	ready = func(ctx context.Context) { _ = svc.Ready(ctx) }
	call = func(ctx context.Context) { _, _ = svc.Call(ctx, 1) }
	return ready, call
}

// Fail-over is what Ready is for.
func failover(ctx, gone context.Context, all []layer.Service[int, int]) (int, error) {
	for _, svc := range all {
		if svc.Ready(gone) == nil {
			return svc.Call(ctx, 1)
		}
	}
	for _, svc := range all {
		if layer.Poll(svc) != nil {
			continue
		}
		return svc.Call(ctx, 1)
	}
	return 0, layer.ErrNotReady
}

// Two variables of one name.
func two(ctx context.Context, idle, busy []layer.Service[int, int]) {
	for _, svc := range idle {
		_ = svc.Ready(ctx)
	}
	for _, svc := range busy {
		_, _ = svc.Call(ctx, 1)
	}
}

// One Ready at the start, and then calls for ever.
func warm(ctx context.Context, svc layer.Service[int, int], in <-chan int) error {
	if err := svc.Ready(ctx); err != nil {
		return err
	}
	for req := range in {
		go svc.Call(ctx, req)
	}
	return nil
}

// A poll that the Call does not depend on.
func notes(ctx context.Context, svc layer.Service[int, int], vain *bool) (int, error) {
	if *vain && layer.Poll(svc) == nil {
		*vain = false
	}
	return svc.Call(ctx, 1)
}
