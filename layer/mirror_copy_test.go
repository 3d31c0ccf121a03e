package layer_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestMirrorFraction(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{
			Match:    func(req *layertest.Request) bool { return req.ID%2 == 0 },
			Fraction: 0.25, Rand: turns(0.2, 0.25, 0.5, 0.9),
		})(kitFunc(reads))
		for i := range 16 {
			ask(t, svc, &layertest.Request{ID: i})
		}
		synctest.Wait()
		require.Len(t, to.bodies(), 2)
	})
}

func TestMirrorMaxInFlight(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		free := make(chan struct{})
		to := &copyTarget{serve: func(context.Context, *layertest.Request) (*layertest.Response, error) {
			<-free
			return &layertest.Response{}, nil
		}}
		l := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 2})
		one, other := l(kitFunc(reads)), l(kitFunc(reads)) // which share it
		for range 3 {
			ask(t, one, withText("hello"))
			ask(t, other, withText("hello"))
		}
		synctest.Wait()
		require.Len(t, to.bodies(), 2)
		require.Equal(t, map[string]int64{"in_flight": 2, "full": 4}, outcomes(one))
		close(free)
		synctest.Wait()
		ask(t, one, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"answered": 3, "full": 4}, outcomes(other))
	})
}

func TestMirrorMetrics(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		var err error
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			if errors.Is(err, context.Canceled) {
				<-ctx.Done()
			}
			return &layertest.Response{}, err
		}}
		mirrored := byLabel{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 1, MaxBodyBytes: 4},
			layer.WithMetrics[*layertest.Response](layer.Instruments{Mirrored: mirrored}))(kitFunc(reads))
		for i, label := range []string{"answered", "failed", "rejected", "skipped", "full"} {
			err = []error{nil, errServer, layer.ErrNotReady, nil, context.Canceled}[i]
			if label == "full" {
				ask(t, svc, withText("hi"))
				synctest.Wait()
			}
			ask(t, svc, withText(map[bool]string{true: "too long", false: "hi"}[label == "skipped"]))
			synctest.Wait()
			require.EqualValues(t, 1, *mirrored[label], label)
			require.EqualValues(t, 1, layer.Describe(svc).State.Get(label), label)
		}
	})
}

// Copies with request bodies that end at the same time are counted when they are sent.
func TestMirrorMaxInFlightConcurrent(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		wait := make(chan struct{})
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{MaxInFlight: 2})(kitFunc(
			func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
				<-wait
				return reads(ctx, req)
			}))
		for range 10 {
			go ask(t, svc, withText("hello"))
		}
		synctest.Wait()
		close(wait)
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 2, "full": 8}, outcomes(svc))
	})
}

func TestMirrorContext(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		free := make(chan struct{})
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-free:
				return &layertest.Response{}, nil
			}
		}}
		type mine struct{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{Timeout: time.Minute}, layer.WithTarget[*layertest.Response]("web"))(kitFunc(reads))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), mine{}, 1))
		route := &layer.Route{Name: "books"}
		began := time.Now()
		_, err := svc.Call(layer.WithRoute(ctx, route), &layertest.Request{})
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 1}, outcomes(svc), "the caller's end is not that of the copy")
		require.Nil(t, to.ctx.Value(mine{}))
		require.Same(t, route, layer.RouteFromContext(to.ctx))
		require.Equal(t, layer.PriorityBulk, layer.PriorityFromContext(to.ctx))
		deadline, _ := to.ctx.Deadline()
		require.Equal(t, began.Add(time.Minute), deadline)

		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Equal(t, "mirror web: timeout: a copy took too long (waited 1m0s)", layer.Describe(svc).State.Get("last_error"))
	})
}

func TestMirrorEndsWithContext(t *testing.T) {
	mirrorShared(t, func(t *testing.T, _ context.Context) {
		life, cancel := context.WithCancel(t.Context())
		to := &copyTarget{serve: func(ctx context.Context, _ *layertest.Request) (*layertest.Response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		wait := make(chan struct{})
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(ctx context.Context, req *layertest.Request) (*layertest.Response, error) {
				if req.ID > 0 {
					<-wait
				}
				return reads(ctx, req)
			}))
		ask(t, svc, withText("hello"))
		go ask(t, svc, &layertest.Request{ID: 1})
		synctest.Wait()
		require.Equal(t, map[string]int64{"in_flight": 1}, outcomes(svc))
		cancel()
		close(wait)
		ask(t, svc, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Len(t, to.bodies(), 1, "nothing is begun any more")
	})
}

func TestMirrorRewrite(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		heads := make(chan map[string]string, 1)
		to := &copyTarget{serve: func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
			heads <- req.Header
			return &layertest.Response{}, nil
		}}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{Rewrite: func(copied *layertest.Request) *layertest.Request {
			copied.Header["copy"] = "yes"
			return copied
		}})(kitFunc(reads))
		req := &layertest.Request{Header: map[string]string{"a": "b"}}
		ask(t, svc, req)
		assert.Equal(t, map[string]string{"a": "b", "copy": "yes"}, <-heads)
		assert.Equal(t, map[string]string{"a": "b"}, req.Header)
	})
}

type unforkable struct{ forking }

func (unforkable) TeeRequest(*layertest.Request, int64, func(*layertest.Request, bool)) *layertest.Request {
	panic("no fork")
}

func TestMirrorEditorPanic(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, unforkable{}, mirrorPolicy{})(kitFunc(reads))
		ask(t, svc, withText("hello"))
		require.Equal(t, map[string]int64{"skipped": 1}, outcomes(svc))
		require.Equal(t, "panic: no fork", layer.Describe(svc).State.Get("last_error"))

		svc = layer.Mirror(life, to, forking{}, mirrorPolicy{Rewrite: func(*layertest.Request) *layertest.Request { panic("odd") }})(kitFunc(reads))
		ask(t, svc, withText("hello"))
		synctest.Wait()
		require.Equal(t, map[string]int64{"failed": 1}, outcomes(svc))
		require.Empty(t, to.bodies())
	})
}

func TestMirrorInnerPanic(t *testing.T) {
	mirrorShared(t, func(t *testing.T, life context.Context) {
		to := &copyTarget{}
		svc := layer.Mirror(life, to, forking{}, mirrorPolicy{})(kitFunc(
			func(context.Context, *layertest.Request) (*layertest.Response, error) { panic("primary") }))
		require.PanicsWithValue(t, "primary", func() { _, _ = svc.Call(t.Context(), &layertest.Request{}) })
		synctest.Wait()
		require.Empty(t, to.bodies())
	})
}

func TestMirrorPolicyValidate(t *testing.T) {
	require.NoError(t, mirrorPolicy{}.Validate())
	require.NoError(t, mirrorPolicy{Fraction: 1, MaxBodyBytes: -1, MaxInFlight: 1, Timeout: 1}.Validate())
	for want, p := range map[string]mirrorPolicy{
		"MirrorPolicy.Fraction is NaN, must be 0 to 1":       {Fraction: math.NaN()},
		"MirrorPolicy.Fraction is 1.5, must be 0 to 1":       {Fraction: 1.5},
		"MirrorPolicy.MaxInFlight is -1, must be at least 0": {MaxInFlight: -1},
		"MirrorPolicy.Timeout is -1s, must be at least 0":    {Timeout: -time.Second},
	} {
		require.EqualError(t, p.Validate(), want)
	}
}
