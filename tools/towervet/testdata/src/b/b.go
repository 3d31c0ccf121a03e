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
