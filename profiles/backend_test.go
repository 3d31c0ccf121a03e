package profiles_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// backend is a target. The test sets its readiness.
type backend struct {
	authority string
	unready   atomic.Bool // Ready fails, and Call rejects
	refusing  atomic.Bool // Call rejects, but Ready returns nil
	closed    atomic.Bool
	changed   notify.Broadcast
	calls     atomic.Int64 // that were served
	refused   atomic.Int64
	polled    atomic.Int64
	serve     func(ctx context.Context, req request) (*reply, error) // nil: 200
}

func (b *backend) Ready(ctx context.Context) error {
	b.polled.Add(1)
	err := b.changed.Wait(ctx, func() bool { return b.closed.Load() || !b.unready.Load() })
	if b.closed.Load() {
		return layer.ErrClosed
	}
	return err
}

func (b *backend) Call(ctx context.Context, req request) (*reply, error) {
	switch {
	case b.closed.Load():
		b.refused.Add(1)
		return nil, &layer.Error{Layer: "backend", Endpoint: b.authority, Kind: layer.ErrClosed}
	case b.unready.Load() || b.refusing.Load() || ctx.Err() != nil:
		b.refused.Add(1)
		return nil, &layer.Error{Layer: "backend", Endpoint: b.authority, Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
	}
	b.calls.Add(1)
	if b.serve != nil {
		return b.serve(ctx, req)
	}
	return &reply{status: 200, from: b.authority, route: layer.RouteFromContext(ctx)}, nil
}

func (b *backend) set(what *atomic.Bool, to bool) {
	what.Store(to)
	b.changed.Wake()
}

// backends is a MakeService that records its calls.
type backends struct {
	mu      sync.Mutex
	made    map[string]*backend
	asked   map[string]int
	prepare func(*backend)
}

func (bs *backends) mk(authority string) service {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.made == nil {
		bs.made, bs.asked = make(map[string]*backend), make(map[string]int)
	}
	b := &backend{authority: authority}
	if bs.prepare != nil {
		bs.prepare(b)
	}
	bs.made[authority] = b
	bs.asked[authority]++
	return b
}

func (bs *backends) get(t testing.TB, authority string) *backend {
	t.Helper()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	require.Contains(t, bs.made, authority, "the Make was never asked for it")
	return bs.made[authority]
}

// calls is how many requests each of the authorities has served.
func (bs *backends) calls() map[string]int64 {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	calls := make(map[string]int64)
	for authority, b := range bs.made {
		if n := b.calls.Load(); n > 0 {
			calls[authority] = n
		}
	}
	return calls
}

// send calls the router with one request, from any goroutine.
func send(t testing.TB, r service, method, path string) *reply {
	t.Helper()
	rsp, err := r.Call(t.Context(), request{method: method, path: path})
	if !assert.NoError(t, err) {
		return &reply{}
	}
	return rsp
}

// routerOf returns a Router with p as its current profile.
func routerOf(t testing.TB, p *profiles.Profile, bs *backends, opts ...option) *router {
	t.Helper()
	return routerWith(t, profiles.Config{}, p, bs, opts...)
}

// routerWith is routerOf for a Router with the other fields of c.
func routerWith(t testing.TB, c profiles.Config, p *profiles.Profile, bs *backends, opts ...option) *router {
	t.Helper()
	src := newScript()
	c.Target, c.Source = target, src
	r := profiles.New(t.Context(), c, access{}, bs.mk, opts...)
	src.send(p, nil)
	return r
}

const target = "web:80"
