package a

import (
	"context"
	"sync"

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

// A method of its own that does not ask either.
type full struct {
	layer.Service[int, int]
	used, n int
}

func (f *full) room() bool { return f.used < f.n }

func (f *full) Ready(ctx context.Context) error { // want `Ready does not ask Service`
	if f.room() {
		return nil
	}
	return layer.ErrNotReady
}

// Nor does what is embedded beside.
type locked struct {
	sync.Mutex
	inner layer.Service[int, int]
	used  int
}

func (l *locked) Call(ctx context.Context, req int) (int, error) { return l.inner.Call(ctx, req) }

func (l *locked) Ready(ctx context.Context) error { // want `Ready does not ask inner`
	l.Lock()
	defer l.Unlock()
	if l.used < 3 {
		return nil
	}
	return layer.ErrNotReady
}

// To look whether it is there is not to ask it.
type optional struct{ inner layer.Service[int, int] }

func (o optional) Call(ctx context.Context, req int) (int, error) { return o.inner.Call(ctx, req) }

func (o optional) Ready(ctx context.Context) error { // want `Ready does not ask inner`
	if o.inner == nil || nil == (o.inner) {
		return layer.ErrClosed
	}
	return nil
}

type optionalAsked struct{ optional }

func (o optionalAsked) Ready(ctx context.Context) error {
	if o.inner != nil {
		return o.inner.Ready(ctx)
	}
	return layer.ErrClosed
}

type generic[Req, Rsp any] struct{ next layer.Service[Req, Rsp] }

func (g *generic[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return g.next.Call(ctx, req)
}

func (g *generic[Req, Rsp]) Ready(context.Context) error { return nil } // want `Ready does not ask next`

type genericAsking[Req, Rsp any] struct{ layer.Service[Req, Rsp] }

func (g *genericAsking[Req, Rsp]) Ready(ctx context.Context) error { return g.first(ctx) }
func (g *genericAsking[Req, Rsp]) first(ctx context.Context) error { return g.second(ctx) }
func (g *genericAsking[Req, Rsp]) second(ctx context.Context) error {
	if g == nil {
		return g.first(ctx)
	}
	return (*g).Service.Ready(ctx)
}

// Two methods that ask each other and nobody else.
type circular struct{ layer.Service[int, int] }

func (c *circular) Ready(ctx context.Context) error { return c.again(ctx) } // want `Ready does not ask Service`
func (c *circular) again(ctx context.Context) error { return c.Ready(ctx) }

// Somebody else may ask.
type handing struct{ layer.Service[int, int] }

func (h *handing) Ready(ctx context.Context) error { return wait(ctx, h) }

func wait(ctx context.Context, h *handing) error { return h.Service.Ready(ctx) }
