package kitlayer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

// again makes further calls as requested, at most n.
func again(n int) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (rsp any, err error) {
			for range n {
				inside, cancel := context.WithCancel(ctx) // as each of them does
				rsp, err = next(inside, request)
				cancel()
				if err == nil {
					return rsp, nil
				}
			}
			return nil, err
		}
	}
}

// script returns one outcome after the other.
func script(errs ...error) layer.Service[int, int] {
	return layer.Func[int, int](func(context.Context, int) (int, error) {
		err := errs[0]
		errs = errs[1:]
		return 0, err
	})
}

func TestAgainRejectedAfterCall(t *testing.T) {
	full := &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: time.Second}
	for _, tt := range []struct {
		name string
		errs []error
		is   error
		text string
	}{
		{"failed, then rejected", []error{errBroken, full}, layer.ErrRetryRejected,
			"middleware: rejected on a retry: called more than once, the last rejected (rate: not ready)"},
		{"failed, then queued in vain", []error{errBroken, layer.ErrFailFast}, layer.ErrTimeout,
			"middleware: timeout: called more than once, the last rejected (fail-fast)"},
		{"rejected, failed, rejected", []error{full, errBroken, full}, layer.ErrRetryRejected,
			"middleware: rejected on a retry: called more than once, the last rejected (rate: not ready)"},
		{"rejected, then failed", []error{full, errBroken}, errBroken, "broken"},
		{"rejected twice", []error{full, full}, layer.ErrNotReady, "rate: not ready"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := kitlayer.Layer[int, int](again(len(tt.errs)))(script(tt.errs...))
			_, err := svc.Call(t.Context(), 1)
			require.ErrorIs(t, err, tt.is)
			require.EqualError(t, err, tt.text)
			assert.Equal(t, errors.Is(tt.is, layer.ErrNotReady), errors.Is(err, layer.ErrNotReady))
			after, ok := layer.RetryAfter(err)
			assert.Equal(t, errors.Is(tt.errs[len(tt.errs)-1], full), ok)
			assert.True(t, !ok || after == time.Second)
		})
	}
}

// A response that the middleware discards was served, and so was a call whose
// result it does not await.
func TestAgainRejectedBesideCall(t *testing.T) {
	t.Run("answered", func(t *testing.T) {
		twice := func(next endpoint.Endpoint) endpoint.Endpoint {
			return func(ctx context.Context, request any) (any, error) {
				_, _ = next(ctx, request)
				return next(ctx, request)
			}
		}
		_, err := kitlayer.Layer[int, int](twice)(script(nil, layer.ErrNotReady)).Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrRetryRejected)
		assert.NotErrorIs(t, err, layer.ErrNotReady)
	})
	t.Run("under way", func(t *testing.T) {
		inside, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		hedge := func(next endpoint.Endpoint) endpoint.Endpoint {
			return func(ctx context.Context, request any) (any, error) {
				go func() {
					defer close(left)
					_, _ = next(ctx, request)
				}()
				<-inside
				return next(ctx, request)
			}
		}
		svc := layer.Limit[int, int](1)(layer.Func[int, int](func(context.Context, int) (int, error) {
			close(inside)
			<-leave
			return 0, nil
		}))
		_, err := kitlayer.Layer[int, int](hedge)(svc).Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrRetryRejected)
		close(leave)
		<-left
	})
}

// Each request is counted separately, also in nested layers.
func TestAgainOtherRequest(t *testing.T) {
	inner := kitlayer.Layer[int, int](again(2))(script(errBroken, layer.ErrNotReady, layer.ErrNotReady, layer.ErrNotReady))
	outer := kitlayer.Layer[int, int](again(1))(inner)
	_, err := outer.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrRetryRejected)
	_, err = outer.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestAgainDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	heard := func(endpoint.Endpoint) endpoint.Endpoint {
		return func(context.Context, any) (any, error) { return nil, errBroken }
	}
	_, err := kitlayer.Layer[int, int](heard)(script()).Call(ctx, 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "middleware: not ready: canceled by the caller: context canceled")
}

// A middleware passes on the request of the caller, and counting costs one
// allocation.
func TestAgainTransparent(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "caller's")
	var got context.Context
	inner := layer.Func[*int, *int](func(ctx context.Context, i *int) (*int, error) {
		got = ctx
		return i, nil
	})
	once := kitlayer.Layer[*int, *int](again(1))(inner)
	_, err := once.Call(ctx, new(int))
	require.NoError(t, err)
	assert.Equal(t, "caller's", got.Value(key{}))

	nop := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, request any) (any, error) { return next(ctx, request) }
	}
	plain := kitlayer.Layer[*int, *int](nop)(inner)
	one := new(int)
	assert.InDelta(t, 1, testing.AllocsPerRun(100, func() { _, _ = plain.Call(ctx, one) }), 0)
	assert.Same(t, ctx, got, "the same, and not one that is around it")
}
