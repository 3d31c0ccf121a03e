package layer_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var (
	errServer = errors.New("server failed")
	noBudget  = func() *layer.Budget { return layer.NewBudget(0, -1, -1) }
)

type (
	retryPolicy = layer.RetryPolicy[*retryRequest, *response]
	retryInner  = func(ctx context.Context, try int, req *retryRequest) (*response, error)
)

// failuresAgain classifies errors as retryable.
func failuresAgain[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	if o.Err != nil {
		return layer.Retryable
	}
	return layer.Success
}

// retrying applies a Retry to f, which gets the number of the attempt.
func retrying(p retryPolicy, f retryInner, opts ...layer.Option[*response]) layer.Service[*retryRequest, *response] {
	var tries atomic.Int64
	opts = append([]layer.Option[*response]{layer.WithClassifier(failuresAgain[*response])}, opts...)
	return layer.Retry(p, opts...)(layer.Func[*retryRequest, *response](
		func(ctx context.Context, req *retryRequest) (*response, error) { return f(ctx, int(tries.Add(1)), req) }))
}

func alwaysFails(counted *int) retryInner {
	return func(context.Context, int, *retryRequest) (*response, error) {
		*counted++
		return nil, errServer
	}
}

func state[Req, Rsp any](svc layer.Service[Req, Rsp], key string) any {
	return layer.Describe(svc).State.Get(key)
}

func TestRetryUntilSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try < 3 {
				return nil, errServer
			}
			return bodyOf("fine"), nil
		})
		rsp, err := svc.Call(t.Context(), &retryRequest{})
		require.NoError(t, err)
		readsAs(t, rsp.Body, "fine")
		took := time.Since(began)
		assert.GreaterOrEqual(t, took, 75*time.Millisecond, "25 and 50 ms")
		assert.LessOrEqual(t, took, 113*time.Millisecond, "and half of it in jitter")
		assert.EqualValues(t, 2, state(svc, "retries"))
		assert.EqualValues(t, 98, state(svc, "budget"))
		assert.EqualValues(t, 0, state(svc, "skipped"))
	})
}

// Each attempt has the route that a router below has chosen for it. Without a choice, it has the
// route of the caller.
func TestRetryRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		caller := &layer.Route{Name: "caller"}
		chosen := []*layer.Route{{Name: "a"}, nil, {Name: "b"}}
		attempts := 0
		svc := retrying(retryPolicy{MaxAttempts: 3}, func(ctx context.Context, try int, _ *retryRequest) (*response, error) {
			require.Same(t, caller, layer.RouteFromContext(ctx))
			if r := chosen[try-1]; r != nil {
				outer := layer.WithRoute(ctx, r)
				inner := layer.WithRoute(outer, &layer.Route{Name: "inner"})
				require.Same(t, r, layer.RouteFromContext(outer))
				require.Equal(t, "inner", layer.RouteFromContext(inner).Name)
				require.Nil(t, layer.RouteFromContext(layer.WithRoute(outer, nil)))
			}
			attempts++
			return nil, errServer
		})
		ctx := layer.WithRoute(t.Context(), caller)
		_, err := svc.Call(ctx, &retryRequest{})
		require.ErrorIs(t, err, errServer)
		require.Equal(t, 3, attempts)
		require.Same(t, caller, layer.RouteFromContext(ctx))
	})
}

func TestRetryErrors(t *testing.T) {
	soon := func(d time.Duration) func(*testing.T) context.Context {
		return func(t *testing.T) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
	}
	asks := func(d time.Duration) retryInner {
		return func(context.Context, int, *retryRequest) (*response, error) {
			return nil, &layer.Error{Layer: "far", RetryAfter: d, Err: errServer}
		}
	}
	for name, tt := range map[string]struct {
		policy retryPolicy
		req    *retryRequest
		inner  retryInner
		ctx    func(*testing.T) context.Context
		text   string
		reason string
	}{
		"tries":  {text: "retry: 3 attempts (waited ", reason: "attempts"},
		"budget": {policy: retryPolicy{Budget: noBudget()}, text: "retry: 1 attempt; no budget: server failed", reason: "budget"},
		"unsafe": {req: &retryRequest{Method: "POST"}, text: "server failed", reason: "unsafe"},
		"by policy": {
			policy: retryPolicy{CanRetry: func(r *retryRequest) bool { return r.Method == "POST" }},
			text:   "server failed", reason: "unsafe",
		},
		"deadline":   {ctx: soon(20 * time.Millisecond), text: "retry: 1 attempt; no time before the deadline: server failed", reason: "deadline"},
		"pushback":   {inner: asks(6 * time.Second), text: "retry: 1 attempt; the service requests a longer wait than allowed", reason: "pushback"},
		"no waiting": {policy: retryPolicy{MaxRetryAfter: -1}, inner: asks(1), text: "longer wait than allowed", reason: "pushback"},
		"body": {
			policy: retryPolicy{MaxBodyBytes: 3}, req: &retryRequest{Method: "PUT", Body: io.NopCloser(strings.NewReader("1234"))},
			inner: func(_ context.Context, _ int, req *retryRequest) (*response, error) {
				io.ReadAll(req.Body)
				return nil, errServer
			},
			text: "retry: 1 attempt; the request body cannot be sent again: server failed", reason: "body",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tt.inner == nil {
					tt.inner = alwaysFails(new(int))
				}
				if tt.req == nil {
					tt.req = &retryRequest{}
				}
				ctx := t.Context()
				if tt.ctx != nil {
					ctx = tt.ctx(t)
				}
				var skipped atomic.Int64
				only := labelled{want: tt.reason, n: &skipped}
				svc := retrying(tt.policy, tt.inner, layer.WithMetrics[*response](layer.Instruments{RetriesSkipped: only}))
				_, err := svc.Call(ctx, tt.req)
				require.ErrorIs(t, err, errServer)
				assert.ErrorContains(t, err, tt.text)
				assert.EqualValues(t, 1, skipped.Load())
				assert.EqualValues(t, 1, state(svc, "skipped"))
			})
		})
	}
}

func TestRetryLastResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := layer.WithClassifier(func(layer.Outcome[*response]) layer.Class { return layer.Throttled })
		var given []*response
		svc := retrying(retryPolicy{MaxAttempts: 2}, func(context.Context, int, *retryRequest) (*response, error) {
			given = append(given, &response{Body: &closeable{Reader: strings.NewReader("503")}})
			return given[len(given)-1], nil
		}, bad)
		rsp, err := svc.Call(t.Context(), &retryRequest{})
		require.NoError(t, err)
		require.Len(t, given, 2)
		assert.Same(t, given[1], rsp)
		assert.True(t, given[0].Body.(*closeable).closed)
		assert.False(t, given[1].Body.(*closeable).closed)
		readsAs(t, rsp.Body, "503")
	})
}

type closeable struct {
	io.Reader
	closed bool
}

func (c *closeable) Close() error {
	c.closed = true
	return nil
}

func TestRetryRequestedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try == 1 {
				return nil, &layer.Error{Layer: "far", RetryAfter: 3 * time.Second, Err: errServer}
			}
			return &response{}, nil
		})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

// Rejections by endpoints are retried for any method and without the budget.
func TestRetryRejectionsWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rejected := &layer.Error{Layer: "reconnect", Kind: layer.ErrNotReady, Reason: "connecting"}
		svc := retrying(retryPolicy{Budget: noBudget()}, func(_ context.Context, try int, req *retryRequest) (*response, error) {
			if try < 3 {
				return nil, rejected
			}
			readsAs(t, req.Body, "hello")
			return &response{}, nil
		})
		_, err := svc.Call(t.Context(), &retryRequest{Method: "POST", Body: io.NopCloser(strings.NewReader("hello"))})
		require.NoError(t, err)
		assert.EqualValues(t, 2, state(svc, "retries"))
	})
}

func TestRetryFinalRejections(t *testing.T) {
	for name, rejection := range map[string]error{"closed": layer.ErrClosed, "fail-fast": layer.ErrFailFast} {
		sent := 0
		svc := retrying(retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) {
			sent++
			return nil, rejection
		})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.Equal(t, rejection, err, name)
		require.Equal(t, 1, sent, name)
	}
}

// A request that was sent and then rejected may have been processed, so the error must not
// match a rejection. The request body is closed.
func TestRetryRejectedAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf("hello")
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, req *retryRequest) (*response, error) {
			if try == 1 {
				io.ReadAll(req.Body)
				req.Body.Close()
				return nil, errServer
			}
			return nil, &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "no endpoints"}
		})
		_, err := svc.Call(t.Context(), &retryRequest{Body: source})
		require.NotErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, errServer)
		require.ErrorIs(t, err, layer.ErrRetryRejected)
		require.ErrorContains(t, err, "3 attempts, the last rejected (balance: not ready: no endpoints)")
		require.EqualValues(t, 1, source.closes.Load())
	})
}

func TestRetryCanceledCaller(t *testing.T) {
	gone := errors.New("gone home")
	for _, tt := range []struct {
		fails     error
		rejection bool
	}{{errServer, false}, {layer.ErrNotReady, true}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
			began, sent := time.Now(), 0
			svc := retrying(retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) {
				sent++
				return nil, tt.fails
			})
			_, err := svc.Call(ctx, &retryRequest{})
			require.ErrorIs(t, err, gone)
			require.Equal(t, tt.rejection, errors.Is(err, layer.ErrNotReady))
			require.Equal(t, 10*time.Millisecond, time.Since(began))
			require.Equal(t, 1, sent)
		})
	}
}

// linkerd/linkerd2#3743: an attempt that takes too long is retried. The limit of all
// attempts together is the caller's deadline, which ends them.
func TestRetryAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		hangs := func(ctx context.Context, try int, _ *retryRequest) (*response, error) {
			if try < 3 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			time.Sleep(990 * time.Millisecond)
			return &response{Body: contextBody{ctx, strings.NewReader("slow")}}, nil
		}
		svc := retrying(retryPolicy{AttemptTimeout: time.Second}, hangs, layer.WithClassifier(layer.DefaultClassifier[*response]))
		rsp, err := svc.Call(t.Context(), &retryRequest{})
		require.NoError(t, err)
		assert.Less(t, time.Since(began), 3200*time.Millisecond)
		time.Sleep(time.Hour) // the limit is one on the head alone
		readsAs(t, rsp.Body, "slow")

		svc = retrying(retryPolicy{AttemptTimeout: time.Second, MaxAttempts: 2}, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		_, err = svc.Call(t.Context(), &retryRequest{})
		require.ErrorIs(t, err, layer.ErrAttemptTimeout)
		require.ErrorContains(t, err, "2 attempts")

		ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("all together"))
		defer cancel()
		_, err = svc.Call(ctx, &retryRequest{})
		require.ErrorContains(t, err, "all together")
		require.NotErrorIs(t, err, layer.ErrAttemptTimeout)
	})
}

// contextBody fails when the context of its request ends.
type contextBody struct {
	ctx context.Context
	io.Reader
}

func (b contextBody) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	return b.Reader.Read(p)
}

func (contextBody) Close() error { return nil }

// failsafe-go/failsafe-go#65, #123: the context of the returned attempt ended with Call, so
// the body could not be read.
func TestRetryResponseBody(t *testing.T) {
	for _, perTry := range []time.Duration{0, time.Second} {
		var inner context.Context
		svc := retrying(retryPolicy{AttemptTimeout: perTry}, func(ctx context.Context, try int, _ *retryRequest) (*response, error) {
			if try == 1 {
				return nil, errServer
			}
			inner = ctx
			return &response{Body: contextBody{ctx, strings.NewReader("whole")}}, nil
		})
		rsp, err := svc.Call(t.Context(), &retryRequest{})
		require.NoError(t, err)
		readsAs(t, rsp.Body, "whole")
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, perTry > 0, inner.Err() != nil, "a context of its own is let go at the end")
	}
}

func TestRetryRequestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf("hello")
		req := &retryRequest{Method: "PUT", Body: source}
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, got *retryRequest) (*response, error) {
			readsAs(t, got.Body, "hello")
			got.Body.Close()
			require.Equal(t, "PUT", got.Method)
			if try < 3 {
				return nil, errServer
			}
			return &response{}, nil
		})
		_, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		require.Same(t, source, req.Body, "the caller's request stays as it is")
		require.EqualValues(t, 1, source.closes.Load())
	})
}

func TestRetryPanics(t *testing.T) {
	source := sourceOf("hello")
	svc := retrying(retryPolicy{AttemptTimeout: time.Hour}, func(_ context.Context, _ int, req *retryRequest) (*response, error) {
		defer req.Body.Close()
		panic("as planned")
	})
	require.PanicsWithValue(t, "as planned", func() { svc.Call(t.Context(), &retryRequest{Body: source}) })
	require.EqualValues(t, 1, source.closes.Load())
}

// labelled is a counter that counts only with the given label.
type labelled struct {
	want string
	n    *atomic.Int64
	is   bool
}

func (c labelled) With(labels ...string) metrics.Counter {
	c.is = c.is || slices.Contains(labels, c.want)
	return c
}

func (c labelled) Add(delta float64) {
	if c.is {
		c.n.Add(int64(delta))
	}
}

func TestRetryCanceledInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		svc := retrying(retryPolicy{}, alwaysFails(&sent))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Millisecond)
			cancel()
		}()
		_, err := svc.Call(ctx, &retryRequest{})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "canceled by the caller after 1 attempt: server failed")
		require.Equal(t, 1, sent)
	})
}

// A retry that waits in a queue when the context ends returns the cause of the context.
func TestRetryCanceledInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf("hello")
		sent := 0
		once := layer.RateLimit[*retryRequest, *response](1e-4, 1)(layer.Func[*retryRequest, *response](
			func(context.Context, *retryRequest) (*response, error) { sent++; return nil, errServer }))
		queue := layer.Queue[*retryRequest, *response](10, time.Hour)(once)
		svc := layer.Retry(retryPolicy{}, layer.WithClassifier(failuresAgain[*response]))(queue)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := svc.Call(ctx, &retryRequest{Body: source})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, layer.ErrNotReady)
		require.ErrorContains(t, err, "deadline exceeded after 2 attempts: queue: not ready")
		require.Equal(t, 1, sent)
		require.EqualValues(t, 1, source.closes.Load())
	})
}

func TestRetryPolicyValidate(t *testing.T) {
	for want, p := range map[string]retryPolicy{
		"":                                 {},
		"MaxAttempts is -1, must be":       {MaxAttempts: -1},
		"MaxAttempts is 101, must be":      {MaxAttempts: 101},
		"AttemptTimeout is -1ns":           {AttemptTimeout: -1},
		"min -1ns":                         {Backoff: layer.Backoff{Min: -1}},
		"max 1ns must be at least min 2ns": {Backoff: layer.Backoff{Min: 2, Max: 1}},
		"jitter -1 must be from 0 to 100":  {Backoff: layer.Backoff{Jitter: -1}},
		"jitter 101 must be from 0 to 100": {Backoff: layer.Backoff{Min: 1, Jitter: 101}},
	} {
		if want == "" {
			require.NoError(t, p.Validate())
			continue
		}
		assert.ErrorContains(t, p.Validate(), want)
	}
	for _, b := range []layer.Backoff{{Min: time.Second}, {Max: time.Millisecond}, {Jitter: 1}, {Min: 1, Max: 2, Jitter: 3}} {
		assert.NoError(t, retryPolicy{Backoff: b}.Validate(), "%+v", b)
	}
}

func TestRetryPolicyMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for tries, want := range map[int]int{0: 3, 1: 1, 2: 2, 100: 100} {
			sent := 0
			svc := retrying(retryPolicy{MaxAttempts: tries}, alwaysFails(&sent))
			_, err := svc.Call(t.Context(), &retryRequest{})
			require.Error(t, err)
			assert.Equal(t, want, sent)
		}
	})
}

// The description has the decisions.
func TestRetryDescribe(t *testing.T) {
	svc := retrying(retryPolicy{MaxAttempts: 2, AttemptTimeout: time.Second}, alwaysFails(new(int)))
	require.Equal(t, "retry      attempts=2 per_attempt=1s budget=100 retries=0 skipped=0\nlayer.Func\n", layer.Describe(svc).String())
}
