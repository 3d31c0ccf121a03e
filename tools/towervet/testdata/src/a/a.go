package a

import (
	"context"

	"github.com/gotower/gotower/layer"
)

type forwards struct{ layer.Service[int, int] }

func (f forwards) Call(ctx context.Context, req int) (int, error) { return f.Service.Call(ctx, req) }

type forgets struct{ layer.Service[int, int] }

func (f forgets) Ready(context.Context) error { return nil } // want `Ready does not ask Service, which this service wraps`

type named struct {
	room  int
	inner layer.Service[int, int]
}

func (n *named) Call(ctx context.Context, req int) (int, error) { return n.inner.Call(ctx, req) }

func (n *named) Ready(context.Context) error { // want `Ready does not ask inner`
	if n.room > 0 {
		return nil
	}
	return layer.ErrNotReady
}

type asking struct{ layer.Service[int, int] }

func (a asking) Ready(ctx context.Context) error { return a.Service.Ready(ctx) }

type polling struct{ layer.Service[int, int] }

func (p polling) Ready(context.Context) error { return layer.Poll(p.Service) }

type delegating struct{ layer.Service[int, int] }

func (d delegating) Ready(ctx context.Context) error { return d.wait(ctx) }
func (d delegating) wait(ctx context.Context) error  { return d.Service.Ready(ctx) }

// A leaf wraps nothing.
type leaf struct{}

func (leaf) Ready(context.Context) error                  { return nil }
func (leaf) Call(_ context.Context, req int) (int, error) { return req, nil }

// Of several services no single one must be asked.
type choice struct{ first, second layer.Service[int, int] }

func (c choice) Ready(context.Context) error                    { return nil }
func (c choice) Call(ctx context.Context, req int) (int, error) { return c.first.Call(ctx, req) }

// Not a service: it has no Call.
type door struct{ inner layer.Service[int, int] }

func (d door) Ready(context.Context) error { return nil }
