package layer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestResponseHeaderTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		var inner context.Context
		svc := layer.ResponseHeaderTimeout[int](time.Second, layer.WithTarget[*response]("web:80"),
			layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				inner = ctx
				_, told := ctx.Deadline()
				assert.False(t, told, "the limit may yet be lifted")
				<-ctx.Done()
				return nil, ctx.Err()
			}))
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.EqualError(t, err, "response header timeout web:80 (waited 1s): context canceled")
		require.EqualError(t, context.Cause(inner), "limit of 1s on the response headers exceeded")
		require.ErrorIs(t, context.Cause(inner), layer.ErrResponseHeaderTimeout)
		require.EqualValues(t, 1, *expired["response_header"])
	})
}

func TestResponseHeaderTimeoutCoversQueue(t *testing.T) { // tower-rs/tower#648
	synctest.Test(t, func(t *testing.T) {
		svc := layer.ResponseHeaderTimeout[int, int](time.Second)(layer.Queue[int, int](10, time.Minute)(&gate{}))
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
	})
}

func TestResponseHeaderTimeoutSlowBody(t *testing.T) { // failsafe-go#65, #123
	for _, asks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var inner context.Context
			svc := layer.ResponseHeaderTimeout[int, *response](time.Second)(
				layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
					inner = ctx
					if asks {
						ctx.Done()
					}
					time.Sleep(time.Second - 1)
					return &response{Body: waitingBody{ctx}}, nil
				}))
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			_, err = rsp.Body.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, context.Canceled, context.Cause(inner))
		})
	}
}

// If the headers arrive after the limit, a response with a body is dropped, because the
// body cannot be read. A response without a body is returned.
func TestResponseHeaderTimeoutLateHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := &closes{}
		svc := layer.ResponseHeaderTimeout[int, *response](time.Second)(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				<-ctx.Done()
				return &response{Body: body}, nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		require.Nil(t, rsp)
		require.Equal(t, 1, body.n, "the dropped response is closed")

		bare := layer.ResponseHeaderTimeout[int, int](time.Second)(layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
			<-ctx.Done()
			return req, nil
		}))
		got, err := bare.Call(t.Context(), 7)
		require.NoError(t, err)
		require.Equal(t, 7, got)
	})
}

// closes is a body that counts the calls of Close.
type closes struct{ n int }

func (c *closes) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closes) Close() error             { c.n++; return nil }

func TestResponseHeaderTimeoutCanceledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		svc := layer.ResponseHeaderTimeout[int, int](time.Minute)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
			cancel(gone)
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}))
		_, err := svc.Call(ctx, 1)
		require.Equal(t, gone, err)
	})
}

func TestResponseHeaderTimeoutInnerPanic(t *testing.T) {
	var inner context.Context
	svc := layer.ResponseHeaderTimeout[int, int](time.Hour)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		inner = ctx
		panic("boom")
	}))
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), 1) })
	require.Error(t, inner.Err())
}
