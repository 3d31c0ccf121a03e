package layer_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

type breakerReply struct {
	Status int
	Body   io.ReadCloser
}

func breakerStatus(o layer.Outcome[*breakerReply]) layer.Class {
	switch {
	case o.Err != nil, o.Response.Status >= 500:
		return layer.Failure
	}
	return layer.Success
}

// breakerBody is a body that ends with an error.
type breakerBody struct{ err error }

func (b breakerBody) Read([]byte) (int, error) { return 0, b.err }
func (breakerBody) Close() error               { return nil }

func newReplyBreaker(serve func(context.Context) *breakerReply, opts ...layer.Option[*breakerReply]) layer.Service[int, *breakerReply] {
	return layer.Breaker[int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff}, append(opts, layer.WithClassifier(breakerStatus))...)(
		layer.Func[int, *breakerReply](func(ctx context.Context, _ int) (*breakerReply, error) { return serve(ctx), nil }))
}

func TestBreakerClassifiesAtEnd(t *testing.T) {
	full := func() io.ReadCloser { return io.NopCloser(strings.NewReader("body")) }
	for name, tt := range map[string]struct {
		rsp  *breakerReply
		end  func(body io.ReadCloser, cancel func())
		open string // the state while the body is open
		want string
	}{
		"read":         {&breakerReply{200, full()}, func(b io.ReadCloser, _ func()) { io.ReadAll(b) }, "closed", "closed"},
		"closed early": {&breakerReply{200, breakerBody{errBreaker}}, func(b io.ReadCloser, _ func()) { b.Close() }, "closed", "closed"},
		"broken off":   {&breakerReply{200, breakerBody{errBreaker}}, func(b io.ReadCloser, _ func()) { io.ReadAll(b) }, "closed", "open"},
		"abandoned":    {&breakerReply{200, breakerBody{errBreaker}}, func(_ io.ReadCloser, cancel func()) { cancel() }, "closed", "closed"},
		"failed head":  {&breakerReply{500, full()}, func(b io.ReadCloser, _ func()) { io.ReadAll(b) }, "open", "open"},
		"no body":      {&breakerReply{500, nil}, func(io.ReadCloser, func()) {}, "open", "open"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := newReplyBreaker(func(context.Context) *breakerReply { return tt.rsp })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				rsp, err := svc.Call(ctx, 0)
				require.NoError(t, err)
				require.Equal(t, tt.open, layer.Describe(svc).State.Get("state"))
				tt.end(rsp.Body, cancel)
				synctest.Wait()
				require.Equal(t, tt.want, layer.Describe(svc).State.Get("state"))
			})
		})
	}
}

// A response counts once, at its end, in each way in which its body may end.
func TestBreakerCountsResponsesOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		end    func(body io.ReadCloser, cancel func())
		open   uint64
		want   uint64
	}{
		"read and closed twice":  {200, func(b io.ReadCloser, _ func()) { io.ReadAll(b); b.Close(); b.Close() }, 0, 1},
		"closed, then cancelled": {200, func(b io.ReadCloser, cancel func()) { b.Close(); cancel() }, 0, 1},
		"cancelled, then closed": {200, func(b io.ReadCloser, cancel func()) { cancel(); synctest.Wait(); b.Close() }, 0, 0},
		"failed, then read":      {500, func(b io.ReadCloser, _ func()) { io.ReadAll(b); b.Close() }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := layer.Breaker[int](layer.UnifiedBreaker(), layer.WithClassifier(breakerStatus))(
					layer.Func[int, *breakerReply](func(context.Context, int) (*breakerReply, error) {
						return &breakerReply{tt.status, io.NopCloser(strings.NewReader("body"))}, nil
					}))
				counted := func() any { return layer.Describe(svc).State.Get("requests") }
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				rsp, err := svc.Call(ctx, 0)
				require.NoError(t, err)
				require.Equal(t, tt.open, counted())
				tt.end(rsp.Body, cancel)
				synctest.Wait()
				require.Equal(t, tt.want, counted())
			})
		})
	}
}

// A Completion must not end a response twice. If it does, the response counts once.
func TestBreakerCompletionEndsTwice(t *testing.T) {
	svc := layer.Breaker[int](layer.UnifiedBreaker(), layer.WithCompletion(func(_ context.Context, rsp int, o layer.Observer) int {
		o.End(nil)
		o.End(nil)
		return rsp
	}))(&breakerInner{})
	require.NoError(t, breakerCalls(t, svc, 3))
	require.EqualValues(t, 3, breakerState(svc, "requests"))
}

// A probe is in flight until its body has ended. Each way to end the body counts once.
func TestBreakerProbeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := &breakerReply{Status: 500}
		svc := newReplyBreaker(func(context.Context) *breakerReply { return answer })
		svc.Call(t.Context(), 0)
		time.Sleep(time.Second)
		answer = &breakerReply{200, breakerBody{errBreaker}}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := svc.Call(ctx, 0)
		require.NoError(t, err)
		_, err = svc.Call(t.Context(), 0)
		require.ErrorContains(t, err, "a probe is in flight")
		cancel()
		synctest.Wait()
		answer = &breakerReply{200, breakerBody{errBreaker}}
		rsp, err := svc.Call(t.Context(), 0)
		require.NoError(t, err, "the abandoned probe gave its place")
		io.ReadAll(rsp.Body)
		rsp.Body.Close()
		_, err = svc.Call(t.Context(), 0)
		require.ErrorContains(t, err, "failed probes: 1, next probe in 2s")
	})
}

func TestBreakerClassifierPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics atomic.Bool
		answer := &breakerReply{Status: 500}
		svc := layer.Breaker[int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff}, layer.WithClassifier(func(o layer.Outcome[*breakerReply]) layer.Class {
			if panics.Load() && o.Ended {
				panic("classifier")
			}
			return breakerStatus(o)
		}))(layer.Func[int, *breakerReply](func(context.Context, int) (*breakerReply, error) { return answer, nil }))
		svc.Call(t.Context(), 0)
		time.Sleep(time.Second)
		answer = &breakerReply{Status: 200}
		panics.Store(true)
		require.Panics(t, func() { svc.Call(t.Context(), 0) })
		require.NoError(t, layer.Poll(svc))
		answer = &breakerReply{200, breakerBody{io.EOF}}
		rsp, err := svc.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Panics(t, func() { io.ReadAll(rsp.Body) })
		panics.Store(false)
		require.NoError(t, layer.Poll(svc))
		_, err = svc.Call(t.Context(), 0)
		require.NoError(t, err)
	})
}
