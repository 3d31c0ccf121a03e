package layer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestTimeoutEndsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Timeout[int, int](5*time.Second, layer.WithTarget[int]("web:80"))(
			layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}))
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, 5*time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, layer.ErrNotReady, "it may have been processed")
		require.EqualError(t, err, "timeout web:80 (waited 5s): limit of 5s exceeded")
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())
	})
}

func TestTimeoutCoversQueue(t *testing.T) { // tower-rs/tower#648
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int, int]().Timeout(time.Second).Queue(10, time.Minute).Service(&gate{})
		start := time.Now()
		_, err := svc.Call(t.Context(), 1)
		assert.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.ErrorIs(t, err, layer.ErrNotReady, "it was never sent")
	})
}

func TestTimeoutCanceledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		svc := layer.Timeout[int, int](time.Minute)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
			cancel(gone)
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}))
		_, err := svc.Call(ctx, 1)
		require.Equal(t, gone, err)
	})
}

// waitingBody ends when its context ends.
type waitingBody struct{ ctx context.Context }

func (b waitingBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, context.Cause(b.ctx)
	}
	p[0] = '.'
	return 1, nil
}
func (waitingBody) Close() error { return nil }

func TestTimeoutContextUntilBodyClosed(t *testing.T) { // failsafe-go#65, #123
	synctest.Test(t, func(t *testing.T) {
		var inner context.Context
		svc := layer.Timeout[int, *response](5 * time.Second)(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				inner = ctx
				return &response{Body: waitingBody{ctx}}, nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = rsp.Body.Read(make([]byte, 1))
		require.NoError(t, err, "the response is still being read")
		require.NoError(t, inner.Err())
		require.NoError(t, rsp.Body.Close())
		require.ErrorIs(t, inner.Err(), context.Canceled)

		rsp, err = svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		_, err = io.ReadAll(rsp.Body)
		require.ErrorIs(t, err, layer.ErrTimeout, "the limit holds for the body too")
	})
}

func TestTimeoutInnerPanic(t *testing.T) {
	var inner context.Context
	svc := layer.Timeout[int, int](time.Hour)(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		inner = ctx
		panic("boom")
	}))
	require.Panics(t, func() { _, _ = svc.Call(t.Context(), 1) })
	require.Error(t, inner.Err())
}

func TestTimeoutZero(t *testing.T) {
	inner := layer.Func[int, int](echo)
	svc := layer.Timeout[int, int](0)(inner)
	_, same := svc.(layer.Func[int, int])
	require.True(t, same)
}

// plainBody ends with its context, but does not return the cause, as the bodies of HTTP/2.
type plainBody struct{ ctx context.Context }

func (b plainBody) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}
func (plainBody) Close() error { return nil }

// plain responds with a plainBody.
var plain = layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
	return &response{Body: plainBody{ctx}}, nil
})

func TestTimeoutBodyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		below := &recorder{}
		measured := layer.WithMetrics[*response](layer.Instruments{Timeouts: expired})
		svc := layer.Timeout[int](5*time.Second, layer.WithTarget[*response]("web:80"), measured)(
			layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
				return layer.AtEnd[*response]()(ctx, &response{Body: plainBody{ctx}}, below), nil
			}))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		start := time.Now()
		_, err = rsp.Body.Read(make([]byte, 1))
		assert.Equal(t, 5*time.Second, time.Since(start))
		require.ErrorIs(t, err, layer.ErrTimeout)
		require.EqualError(t, err, "timeout web:80 (waited 5s): context deadline exceeded")
		require.NoError(t, rsp.Body.Close())
		synctest.Wait() // the end of the context is reported on another goroutine
		require.EqualValues(t, 1, *expired["total"], "once")
		require.Len(t, below.ends, 1)
		require.ErrorIs(t, below.ends[0], layer.ErrTimeout, "the layers below hear it too")
		require.Equal(t, "timeout    after=5s expired=1\nlayer.Func\n", layer.Describe(svc).String())
	})
}

func TestTimeoutNestedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		for name, tt := range map[string]struct {
			outer, inner time.Duration
			cancel       error
			want         string
		}{
			"outer":  {outer: time.Second, inner: 2 * time.Second, want: "timeout outer (waited 1s): context deadline exceeded"},
			"inner":  {outer: 2 * time.Second, inner: time.Second, want: "timeout inner (waited 1s): context deadline exceeded"},
			"caller": {outer: 2 * time.Second, inner: time.Second, cancel: gone, want: "context canceled"},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			svc := layer.Timeout[int](tt.outer, layer.WithTarget[*response]("outer"))(
				layer.Timeout[int](tt.inner, layer.WithTarget[*response]("inner"))(plain))
			rsp, err := svc.Call(ctx, 1)
			require.NoError(t, err)
			if tt.cancel != nil {
				cancel(tt.cancel)
			}
			_, err = io.ReadAll(rsp.Body)
			assert.EqualError(t, err, tt.want, name)
			cancel(nil)
		}
	})
}

// A body that was closed before the limit, or read to its end, does not count as expired.
func TestTimeoutCountsExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		svc := layer.Timeout[int](time.Second, layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(
			layer.Func[int, *response](func(ctx context.Context, how int) (*response, error) {
				switch how {
				case 0:
					return &response{Body: plainBody{ctx}}, nil
				case 1:
					return bodyOf("hello"), nil
				default:
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}))
		for how, want := range []float64{0, 0, 1} {
			rsp, err := svc.Call(t.Context(), how)
			if err == nil && how == 1 {
				_, err = io.ReadAll(rsp.Body)
				require.NoError(t, err)
			}
			if rsp != nil {
				require.NoError(t, rsp.Body.Close())
			}
			time.Sleep(time.Minute)
			require.EqualValues(t, want, *expired["total"], how)
		}
		_, err := svc.Call(t.Context(), 0)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 2, *expired["total"], "abandoned")
	})
}

func TestTimeoutAllocations(t *testing.T) {
	svc := layer.Timeout[int, int](time.Hour)(layer.Func[int, int](echo))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(ctx, 1) }), 1.0)
}

// Buffered data can be read after the limit.
func TestTimeoutBufferedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Timeout[int, *response](time.Second)(
			layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("hello"), nil }))
		rsp, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		got, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	})
}

// A body that failed for another reason is not counted.
func TestTimeoutOtherBodyErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		svc := layer.Timeout[int](time.Second, layer.WithMetrics[*response](layer.Instruments{Timeouts: expired}))(plain)
		ctx, cancel := context.WithCancel(t.Context())
		rsp, err := svc.Call(ctx, 1)
		require.NoError(t, err)
		cancel()
		_, err = io.ReadAll(rsp.Body)
		require.Equal(t, context.Canceled, err)
		require.Zero(t, *expired["total"])
	})
}

// The result is the same whether layers below wait for the end of the context always,
// sometimes or never.
func TestTimeoutContextObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := byLabel{}
		svc := layer.Timeout[bool](time.Second, layer.WithTarget[int]("web:80"),
			layer.WithMetrics[int](layer.Instruments{Timeouts: expired}))(
			layer.Func[bool, int](func(ctx context.Context, waits bool) (int, error) {
				deadline, ok := ctx.Deadline()
				assert.True(t, ok)
				assert.Equal(t, time.Second, time.Until(deadline))
				if waits {
					<-ctx.Done()
					return 0, ctx.Err()
				}
				return 1, nil
			}))
		late := 0
		for i := range 2000 {
			waits := i%7 < 5 || i < 100
			start := time.Now()
			rsp, err := svc.Call(t.Context(), waits)
			if !waits {
				require.NoError(t, err)
				require.Equal(t, 1, rsp)
				continue
			}
			late++
			require.Equal(t, time.Second, time.Since(start))
			require.EqualError(t, err, "timeout web:80 (waited 1s): context deadline exceeded")
			require.ErrorIs(t, err, layer.ErrTimeout)
		}
		require.EqualValues(t, late, *expired["total"])

		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { cancel(gone) })
		_, err := svc.Call(ctx, true)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, layer.ErrTimeout, "the caller's own end is not ours")
		require.EqualValues(t, late, *expired["total"])
	})
}

// The error names the limit also if the body is a connection, with CloseWrite and
// without.
func TestTimeoutConnection(t *testing.T) {
	for name, body := range map[string]func(net.Conn) net.Conn{
		"whole":     func(c net.Conn) net.Conn { return c },
		"by halves": func(c net.Conn) net.Conn { return halfClosed{c, new(bool)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				svc := layer.Timeout[int, *response](time.Second)(
					layer.Func[int, *response](func(ctx context.Context, _ int) (*response, error) {
						context.AfterFunc(ctx, func() { near.Close() })
						return &response{Body: body(near)}, nil
					}))
				rsp, err := svc.Call(t.Context(), 1)
				require.NoError(t, err)
				_, err = rsp.Body.Read(make([]byte, 1))
				require.ErrorIs(t, err, layer.ErrTimeout)
				require.NoError(t, rsp.Body.Close())
			})
		})
	}
}

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
