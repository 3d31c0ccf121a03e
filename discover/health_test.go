package discover_test

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func TestHealthCheckConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		New: func(ctx context.Context, next layer.Service[*layertest.Request, *layertest.Response]) layer.Service[*layertest.Request, *layertest.Response] {
			mk := func(context.Context, discover.Target) layer.Service[*layertest.Request, *layertest.Response] {
				return next
			}
			check := func(context.Context, discover.Target, layer.Service[*layertest.Request, *layertest.Response]) error {
				return nil
			}
			return discover.WithHealthCheck(mk, check, discover.HealthPolicy{})(ctx, discover.Target{})
		},
	})
}

// switchboard has the result of the check of each endpoint.
type switchboard struct {
	mu      sync.Mutex
	results map[netip.AddrPort]error
	checks  int
}

func (s *switchboard) set(addr netip.AddrPort, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[addr] = err
}

func (s *switchboard) check(_ context.Context, t discover.Target, _ layer.Service[int, int]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks++
	return s.results[t.Endpoint.Addr]
}

func TestHealthCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
		down := errors.New("down")
		s := &switchboard{results: map[netip.AddrPort]error{a: down, b: down}}
		mk := discover.WithHealthCheck(func(context.Context, discover.Target) layer.Service[int, int] {
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, s.check, discover.HealthPolicy{Interval: time.Second, Healthy: 2, Unhealthy: 3})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ctxB, removeB := context.WithCancel(ctx)
		target := func(addr netip.AddrPort) discover.Target {
			return discover.Target{Name: "web", Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}}
		}
		first, second := mk(ctx, target(a)), mk(ctxB, target(b))
		ready := func(svc layer.Service[int, int]) bool {
			_, err := svc.Call(t.Context(), 1)
			if err != nil {
				require.ErrorIs(t, err, layer.ErrNotReady)
			}
			assert.Equal(t, err == nil, layer.Poll(svc) == nil)
			return err == nil
		}
		after := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}

		// No endpoint is healthy, so that all admit requests.
		after(0)
		assert.True(t, ready(first) && ready(second))

		// The first endpoint is healthy after two checks.
		s.set(a, nil)
		after(1200 * time.Millisecond)
		assert.True(t, ready(first) && ready(second), "after one check")
		after(1200 * time.Millisecond)
		assert.True(t, ready(first))
		assert.False(t, ready(second))
		_, err := second.Call(t.Context(), 1)
		require.ErrorIs(t, err, down)
		assert.Contains(t, layer.Describe(second).String(), "healthy=false")
		waited := make(chan error, 1)
		go func() { waited <- second.Ready(t.Context()) }()

		// Three failed checks make it unhealthy, and wake the callers of the other one.
		s.set(a, down)
		after(1200 * time.Millisecond)
		assert.True(t, ready(first), "after one failed check")
		assert.False(t, ready(second))
		after(2400 * time.Millisecond)
		require.NoError(t, <-waited)
		assert.True(t, ready(first) && ready(second))

		// The removal of the only healthy endpoint admits requests to the others.
		s.set(b, nil)
		after(2400 * time.Millisecond)
		assert.False(t, ready(first))
		removeB()
		synctest.Wait()
		assert.True(t, ready(first))
		cancel()
		synctest.Wait()
		before := s.checks
		after(time.Minute)
		assert.Equal(t, before, s.checks, "checks after the end")
	})
}

// A check that hangs or panics has failed.
func TestHealthCheckFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mk := discover.WithHealthCheck(func(context.Context, discover.Target) layer.Service[int, int] {
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, func(ctx context.Context, t discover.Target, _ layer.Service[int, int]) error {
			switch t.Endpoint.Labels["kind"] {
			case "hang":
				<-ctx.Done()
				return ctx.Err()
			case "panic":
				panic("check")
			}
			return nil
		}, discover.HealthPolicy{})
		services := make(map[string]layer.Service[int, int])
		for _, kind := range []string{"hang", "panic", "healthy"} {
			services[kind] = mk(ctx, discover.Target{Endpoint: resolve.Endpoint{Labels: map[string]string{"kind": kind}}})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for kind, svc := range services {
			assert.Equal(t, kind == "healthy", layer.Poll(svc) == nil, kind)
		}
		cancel()
		synctest.Wait()
	})
}

// The longest interval does not overflow.
func TestHealthCheckOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var checks atomic.Int64
		mk := discover.WithHealthCheck(func(context.Context, discover.Target) layer.Service[int, int] {
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, func(context.Context, discover.Target, layer.Service[int, int]) error {
			if checks.Add(1) > 1000 {
				cancel()
			}
			return nil
		}, discover.HealthPolicy{Interval: math.MaxInt64})
		for range 20 {
			mk(ctx, discover.Target{})
		}
		synctest.Wait()
		assert.EqualValues(t, 20, checks.Load())
	})
}

// A removed endpoint with an open response is not a healthy endpoint of the target. Otherwise the
// other endpoints would reject requests while all of their checks fail.
func TestHealthCheckOfRemovedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver := static.New(map[string][]resolve.Endpoint{"web": {at(1), at(2)}})
		leaf := layer.Func[string, *response](func(context.Context, string) (*response, error) { return body("long"), nil })
		check := func(_ context.Context, t discover.Target, _ service) error {
			if t.Endpoint.Addr == addr(2) {
				return errors.New("down")
			}
			return nil
		}
		mk := discover.WithHealthCheck(func(context.Context, discover.Target) service { return leaf }, check, discover.HealthPolicy{})
		services := make(map[netip.AddrPort]service)
		go func() {
			for c := range discover.Endpoints(t.Context(), resolver, "web", mk) {
				for _, e := range c.Added {
					services[e.Addr] = e.Service
				}
			}
		}()
		synctest.Wait()
		rsp, err := services[addr(1)].Call(t.Context(), "")
		require.NoError(t, err)
		defer rsp.Body.Close()
		_, err = services[addr(2)].Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrNotReady)

		resolver.Set("web", at(2))
		synctest.Wait()
		other, err := services[addr(2)].Call(t.Context(), "")
		require.NoError(t, err, "no endpoint is healthy")
		require.NoError(t, other.Body.Close())
	})
}

func TestHealthCheckArguments(t *testing.T) {
	mk := func(context.Context, discover.Target) layer.Service[int, int] { return nil }
	check := func(context.Context, discover.Target, layer.Service[int, int]) error { return nil }
	assert.Panics(t, func() { discover.WithHealthCheck(nil, check, discover.HealthPolicy{}) })
	assert.Panics(t, func() { discover.WithHealthCheck[int, int](mk, nil, discover.HealthPolicy{}) })
	for text, p := range map[string]discover.HealthPolicy{
		"HealthPolicy.Interval is 1ns, must be at least 1ms": {Interval: 1},
		"HealthPolicy.Timeout is -1ns, must be at least 0":   {Timeout: -1},
		"HealthPolicy.Healthy is -1, must be at least 0":     {Healthy: -1},
		"HealthPolicy.Unhealthy is -1, must be at least 0":   {Unhealthy: -1},
	} {
		require.EqualError(t, p.Validate(), text)
		assert.PanicsWithValue(t, "discover: "+text, func() { discover.WithHealthCheck(mk, check, p) })
	}
	assert.Nil(t, discover.WithHealthCheck(mk, check, discover.HealthPolicy{})(t.Context(), discover.Target{}))
}
