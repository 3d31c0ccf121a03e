package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
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

// A Retry with a limit of an attempt warns when it is made above a balancer that picks at random.
func TestRetryWarns(t *testing.T) {
	made := func(attempt time.Duration, picker balance.Picker) string {
		var text strings.Builder
		log := layer.WithLogger[int](slog.New(slog.NewTextHandler(&text, nil)))
		empty := func(func(discover.Change[int, int]) bool) {}
		b := balance.New[int, int](t.Context(), balance.Config{Target: "web", Policy: balance.Policy{Picker: picker}}, empty)
		below := layer.NewStack[int, int]().Queue(1, time.Second).Service(b)
		layer.Retry(layer.RetryPolicy[int, int]{AttemptTimeout: attempt})(below)
		layer.NewStack[int](log).WithTarget("web").Retry(layer.RetryPolicy[int, int]{AttemptTimeout: attempt}).Service(below)
		return text.String()
	}
	assert.Empty(t, made(0, balance.Random()))
	assert.Empty(t, made(time.Second, balance.Picker{}))
	assert.Empty(t, made(time.Second, balance.RoundRobin()))
	text := made(time.Second, balance.Random())
	assert.Equal(t, 1, strings.Count(text, "level=WARN"), text)
	assert.Contains(t, text, "at least fifteen times the mean response time")
	assert.Contains(t, text, "target=web per_attempt=1s")
}

// The last attempt may be exempt from the limit of an attempt.
func TestRetryLastUnlimited(t *testing.T) {
	for limited, want := range map[bool]error{true: layer.ErrAttemptTimeout, false: nil} {
		synctest.Test(t, func(t *testing.T) {
			policy := retryPolicy{AttemptTimeout: time.Second, MaxAttempts: 3, LastUnlimited: !limited}
			began := time.Now()
			svc := retrying(policy, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-time.After(time.Minute):
					return &response{Body: io.NopCloser(strings.NewReader(""))}, nil
				}
			}, layer.WithClassifier(layer.DefaultClassifier[*response]))
			_, err := svc.Call(t.Context(), &retryRequest{})
			require.ErrorIs(t, err, want)
			require.Equal(t, !limited, time.Since(began) > time.Minute+2*time.Second)

			ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("all together"))
			defer cancel()
			_, err = svc.Call(ctx, &retryRequest{})
			require.Error(t, err)
			require.Equal(t, !limited, strings.Contains(err.Error(), "all together"))
		})
	}
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

// A request that an open breaker rejects does not wait in the Retry until the breaker closes.
func TestRetryOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		svc := layer.NewStack[int](layer.WithClassifier(failuresAgain[int])).
			Retry(layer.RetryPolicy[int, int]{MaxAttempts: 10, Budget: noBudget()}).
			Breaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: time.Second, Max: time.Second}}).
			Service(layer.Func[int, int](func(context.Context, int) (int, error) {
				calls++
				return 0, errServer
			}))
		_, err := svc.Call(t.Context(), 1)
		require.ErrorIs(t, err, errServer)
		began := time.Now()
		_, err = svc.Call(t.Context(), 2)
		require.ErrorIs(t, err, layer.ErrNotReady)
		after, ok := layer.RetryAfter(err)
		require.True(t, ok)
		require.Equal(t, time.Second, after)
		require.Zero(t, time.Since(began))
		require.Equal(t, 1, calls)
		time.Sleep(990 * time.Millisecond)
		_, err = svc.Call(t.Context(), 3) // the first pause is 12.5 to 37.5 ms
		require.ErrorIs(t, err, errServer)
		require.Equal(t, 2, calls)
	})
}

// peekResponse is a response that shows its outcome only after a Peek.
type peekResponse struct {
	failed, ahead bool
	Body          io.ReadCloser // that it ends with
}

type fate struct{ peeked, discarded int }

// peekProtocol is a Protocol whose Peek reads ahead.
type peekProtocol struct {
	layer.BaseProtocol[*retryRequest, *peekResponse]
	fate  *fate
	whole bool
}

func (peekProtocol) Replay(req *retryRequest, limit int64) layer.Replay[*retryRequest] {
	if req.Body == nil {
		return nil
	}
	return keptAgain{layer.ReplayBody(req.Body, nil, limit)}
}

func (r peekProtocol) Drain(v *peekResponse) {
	if v.ahead {
		r.fate.discarded++
	}
}

func (r peekProtocol) Peek(_ context.Context, v *peekResponse) (*peekResponse, bool) {
	r.fate.peeked++
	return &peekResponse{ahead: true}, r.whole
}

func (peekProtocol) Outline(*peekResponse) string { return "a verse" }

type keptAgain struct{ *layer.BodyReplay }

func (k keptAgain) Next() (*retryRequest, bool) {
	body, ok := k.BodyReplay.Next()
	return &retryRequest{Body: body}, ok
}

// peeking is a Retry over a service that fails twice, in its trailers.
func peeking(r peekProtocol, policy layer.RetryPolicy[*retryRequest, *peekResponse], inner func(req *retryRequest)) layer.Service[*retryRequest, *peekResponse] {
	n := 0
	if policy.MaxAttempts == 0 {
		policy.MaxAttempts = 5
	}
	policy.Backoff = layer.Backoff{Min: 1, Max: 1}
	policy.RetryIf = func(o layer.Outcome[*peekResponse]) bool { return o.Ended && o.Response.failed }
	classify := layer.WithClassifier(func(o layer.Outcome[*peekResponse]) layer.Class {
		if o.Ended && o.Response.failed {
			return layer.Failure
		}
		return layer.Success
	})
	return layer.Retry(policy, layer.WithProtocol(r), classify)(layer.Func[*retryRequest, *peekResponse](
		func(_ context.Context, req *retryRequest) (*peekResponse, error) {
			inner(req)
			n++
			return &peekResponse{failed: n <= 2}, nil
		}))
}

func readAll(req *retryRequest) {
	if req.Body != nil {
		_, _ = io.ReadAll(req.Body)
	}
}

func TestRetryPeek(t *testing.T) {
	unread := func(*retryRequest) {}
	for name, tt := range map[string]struct {
		whole             bool
		policy            layer.RetryPolicy[*retryRequest, *peekResponse]
		body              string
		inner             func(*retryRequest)
		peeked, discarded int
		ahead             bool
	}{
		"a failure in the trailers":   {whole: true, inner: unread, peeked: 3, discarded: 2, ahead: true},
		"which come too late":         {inner: unread, peeked: 1, ahead: true},
		"not of the last try":         {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{MaxAttempts: 2}, inner: unread, peeked: 1, discarded: 1},
		"with a body that was sent":   {whole: true, body: "x", inner: readAll, peeked: 3, discarded: 2, ahead: true},
		"with a body that was not":    {whole: true, body: "x", inner: unread},
		"with a body that is lost":    {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{MaxBodyBytes: 3}, body: "four", inner: readAll},
		"where it is not to be again": {whole: true, policy: layer.RetryPolicy[*retryRequest, *peekResponse]{CanRetry: func(*retryRequest) bool { return false }}, inner: unread},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := peekProtocol{fate: new(fate), whole: tt.whole}
				req := &retryRequest{}
				if tt.body != "" {
					req.Body = io.NopCloser(strings.NewReader(tt.body))
				}
				rsp, err := peeking(r, tt.policy, tt.inner).Call(t.Context(), req)
				require.NoError(t, err)
				assert.Equal(t, tt.ahead, rsp.ahead)
				assert.Equal(t, fate{tt.peeked, tt.discarded}, *r.fate)
			})
		})
	}
}

func TestRetryExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := peekProtocol{fate: new(fate), whole: true}
		ctx, why := layer.Explain(t.Context())
		_, err := peeking(r, layer.RetryPolicy[*retryRequest, *peekResponse]{}, readAll).Call(ctx, &retryRequest{})
		require.NoError(t, err)
		assert.Equal(t, `retry      attempt=2 because=failure: a verse budget=99
retry      attempt=3 because=failure: a verse budget=98
retry      attempts=3 budget=98
`, why.String())
	})
}

func TestRetryExplainSkipped(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retryPolicy
		inner  retryInner
		want   string
	}{
		"fine":   {retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) { return bodyOf(""), nil }, "retry      target=web:80 attempts=1 budget=100\n"},
		"budget": {retryPolicy{Budget: noBudget()}, alwaysFails(new(int)), "retry      target=web:80 attempts=1 failed=server failed skipped=budget budget=0\n"},
		"tries":  {retryPolicy{MaxAttempts: 2}, alwaysFails(new(int)), "retry      target=web:80 attempt=2 because=server failed budget=99\nretry      target=web:80 attempts=2 failed=server failed skipped=attempts budget=99\n"},
		"rejected": {retryPolicy{RetryIf: func(layer.Outcome[*response]) bool { return false }}, func(context.Context, int, *retryRequest) (*response, error) {
			return nil, layer.ErrNotReady
		}, "retry      target=web:80 attempts=1 budget=100\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, why := layer.Explain(t.Context())
				_, _ = retrying(tt.policy, tt.inner, layer.WithTarget[*response]("web:80")).Call(ctx, &retryRequest{})
				assert.Equal(t, tt.want, why.String())
			})
		})
	}
}

// Each attempt can read the endpoints of earlier attempts from its context.
func TestRetryAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		svc := retrying(retryPolicy{}, func(ctx context.Context, try int, _ *retryRequest) (*response, error) {
			tries := layer.AttemptsFromContext(ctx)
			seen = append(seen, fmt.Sprint(tries.Len(), tries.Has(try-1)))
			tries.Add(try)
			return nil, errServer
		})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.Error(t, err)
		require.Equal(t, []string{"0 false", "1 true", "2 true"}, seen)

		above := new(layer.Attempts)
		svc = retrying(retryPolicy{}, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
			assert.Same(t, above, layer.AttemptsFromContext(ctx))
			return &response{}, nil
		})
		_, err = svc.Call(layer.WithAttempts(t.Context(), above), &retryRequest{})
		require.NoError(t, err)
	})
}

// moonrhythm/parapet#223: nested retries multiply. Here only the outer one retries. If the
// outer one may not retry, the inner one does.
func TestRetryNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for method, wantOuter := range map[string]int{"GET": 2, "POST": 0} {
			sent := 0
			budget := layer.NewBudget(0, 1, -1)
			budget.Deposit()
			budget.Deposit()
			inner := retrying(retryPolicy{
				Budget: budget, CanRetry: func(*retryRequest) bool { return true },
			}, alwaysFails(&sent))
			outer := layer.Retry(retryPolicy{Budget: budget}, layer.WithClassifier(failuresAgain[*response]))(inner)
			_, err := outer.Call(t.Context(), &retryRequest{Method: method})
			require.ErrorIs(t, err, errServer)
			assert.Equal(t, 3, sent, method)
			assert.EqualValues(t, wantOuter, state(outer, "retries"), method)
			assert.EqualValues(t, 2-wantOuter, state(inner, "retries"), method)
		}
	})
}

// AttemptTimeout also limits an attempt of a Retry above, which then makes its next
// attempt.
func TestRetryNestedAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		inner := retrying(retryPolicy{AttemptTimeout: time.Second}, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
			if sent++; sent == 2 {
				return &response{Body: io.NopCloser(strings.NewReader(""))}, nil
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		outer := layer.Retry(retryPolicy{}, layer.WithClassifier(failuresAgain[*response]))(inner)
		began := time.Now()
		rsp, err := outer.Call(t.Context(), &retryRequest{Method: "GET"})
		require.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second)
		assert.Equal(t, 2, sent)
		assert.EqualValues(t, 1, state(outer, "retries"))
		assert.EqualValues(t, 0, state(inner, "retries"))
		require.NoError(t, rsp.Body.Close())
	})
}

// Retries of stacks with the same Budget are limited together.
func TestRetrySharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(time.Minute, -1, 1)
		sent := 0
		a, b := retrying(retryPolicy{Budget: budget}, alwaysFails(&sent)), retrying(retryPolicy{Budget: budget}, alwaysFails(&sent))
		for range 100 {
			for _, svc := range []layer.Service[*retryRequest, *response]{a, b} {
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.Error(t, err)
			}
		}
		assert.GreaterOrEqual(t, sent, 260)
		assert.LessOrEqual(t, sent, 275)
	})
}

// If the caller cancels during an attempt, the error of the attempt is returned unchanged.
func TestRetryCanceledInAttempt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	given := &response{Body: &closeable{}}
	svc := retrying(retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) {
		cancel()
		return given, nil
	}, layer.WithClassifier(func(layer.Outcome[*response]) layer.Class { return layer.Retryable }))
	rsp, err := svc.Call(ctx, &retryRequest{})
	require.NoError(t, err)
	require.Same(t, given, rsp)
	require.False(t, given.Body.(*closeable).closed)
}

// The body of an earlier attempt cannot be read any more. A body that was prepared but not
// sent is closed.
func TestRetryBodiesOfEarlierAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		source := sourceOf("hello")
		var bodies []io.ReadCloser
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, req *retryRequest) (*response, error) {
			bodies = append(bodies, req.Body)
			if try == 2 {
				_, err := bodies[0].Read(make([]byte, 1))
				assert.ErrorContains(t, err, "earlier attempt")
				go func() {
					time.Sleep(time.Millisecond)
					cancel()
				}()
			}
			return nil, errServer // without closing the body
		})
		_, err := svc.Call(ctx, &retryRequest{Body: source})
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, bodies, 2)
		require.EqualValues(t, 1, source.closes.Load())
	})
}

// noRoom is a leaf with requests that last for a minute.
func noRoom(ctx context.Context, _ int) (int, error) {
	select {
	case <-time.After(time.Minute):
		return 0, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// A request that was shed is not sent again.
func TestRetryShedRequests(t *testing.T) {
	key := func(int) int { return 1 }
	normal := context.Background()
	low := layer.WithPriority(normal, layer.PriorityBulk)
	for name, tt := range map[string]struct {
		of     layer.Layer[int, int]
		before []context.Context // those of the requests that take what room there is
	}{
		"limit":    {layer.Limit[int, int](1), []context.Context{normal}},
		"adaptive": {layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Min: 1, Max: 1, Initial: 1}), []context.Context{normal}},
		"rate":     {layer.RateLimit[int, int](1, 1), []context.Context{normal}},
		"rate_by":  {layer.RateLimitBy[int, int, int](key, 1, 1, 10), []context.Context{normal}},
		"queue, full": {
			layer.NewStack[int, int]().Queue(1, time.Hour).Limit(1).Layer(), []context.Context{normal, normal},
		},
		"queue, in fail-fast": {
			layer.NewStack[int, int]().Queue(1, time.Nanosecond).Limit(1).Layer(),
			[]context.Context{normal, normal},
		},
		"shed": {
			layer.NewStack[int, int]().Shed(layer.ShedPolicy{}).Limit(1).Layer(), []context.Context{normal, normal},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := tt.of(layer.Func[int, int](noRoom))
				for _, ctx := range tt.before {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					go svc.Call(ctx, 1) // takes room
					time.Sleep(time.Microsecond)
				}
				budget, began := layer.NewBudget(0, -1, 1), time.Now()
				again := layer.Retry(layer.RetryPolicy[int, int]{Budget: budget}, layer.WithClassifier(failuresAgain[int]))(svc)
				_, err := again.Call(low, 1)
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.NotErrorIs(t, err, layer.ErrFailFast, "that is never tried again")
				assert.Zero(t, time.Since(began))
				assert.EqualValues(t, 0, state(again, "retries"))
				assert.Equal(t, 10, budget.Balance())
			})
		})
	}
}

// The same if a balancer returns the rejections of its endpoints, or if the first
// attempt failed.
func TestRetryShedBelowBalancer(t *testing.T) {
	_, full := layer.Limit[int, int](0)(layer.Func[int, int](echo)).Call(t.Context(), 1)
	none := &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "0 of 3 endpoints ready", Err: full}
	for name, tt := range map[string]struct {
		first error
		want  error
		tries int
	}{
		"balancer":  {none, layer.ErrNotReady, 1},
		"then shed": {errServer, layer.ErrRetryRejected, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				svc := retrying(retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
					if tries++; try == 1 {
						return nil, tt.first
					}
					return nil, full
				})
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.tries, tries)
			})
		})
	}
}

// The stack of the README without room for most requests. They are rejected at once.
func TestRetryOverFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int](layer.WithClassifier(failuresAgain[int])).Retry(layer.RetryPolicy[int, int]{}).Queue(3, 3*time.Second).
			Limit(2).Service(layer.Func[int, int](noRoom))
		began, rejected := time.Now(), make(chan time.Duration, 30)
		ctx, cancel := context.WithCancel(t.Context())
		for range 30 {
			go func() {
				if _, err := svc.Call(ctx, 1); errors.Is(err, layer.ErrNotReady) && ctx.Err() == nil {
					rejected <- time.Since(began)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.Len(t, rejected, 25, "two are served, and three wait")
		for range 25 {
			assert.Zero(t, <-rejected)
		}
		assert.EqualValues(t, 0, state(svc, "retries"))
		cancel()
	})
}

// onceServer serves one request at a time in FIFO order. It serves a request to its end
// even if the caller has canceled it.
type onceServer struct {
	takes time.Duration // each request

	mu    sync.Mutex
	until time.Time // busy
	seen  int
}

func (s *onceServer) Ready(context.Context) error { return nil }

func (s *onceServer) Call(ctx context.Context, req int) (int, error) {
	s.mu.Lock()
	now := time.Now()
	if s.until.Before(now) {
		s.until = now
	}
	s.until = s.until.Add(s.takes)
	s.seen++
	answer := s.until.Sub(now)
	s.mu.Unlock()
	select {
	case <-time.After(answer):
		return req, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// stall makes the server idle for d.
func (s *onceServer) stall(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(d)
}

func (s *onceServer) behind() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.until)
}

// openLoop sends rate requests a second independently of the results, and records which
// requests failed by the time of their start.
func openLoop(svc layer.Service[int, int], rate int, d time.Duration, failed *sync.Map) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Go(func() {
		for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second / time.Duration(rate)) {
			sent := time.Now()
			all.Go(func() {
				if _, err := svc.Call(context.Background(), 1); err != nil {
					failed.Store(sent, err)
				}
			})
		}
	})
	return &all
}

// After PierreZ/moonpool#193: 50 requests per second, a server that can serve 160, and a
// stall of 650 ms. Unlimited retries keep the server busy with canceled requests, and it
// never recovers. With the budget it recovers.
func TestRetryStorm(t *testing.T) {
	const rate, warmUp, trigger, after = 50, 10 * time.Second, 650 * time.Millisecond, 15 * time.Second
	run := func(t *testing.T, budget *layer.Budget) (late int, behind time.Duration, seen int) {
		server := &onceServer{takes: time.Second / 160}
		svc := layer.Retry[int, int](layer.RetryPolicy[int, int]{Budget: budget, MaxAttempts: 5, AttemptTimeout: 200 * time.Millisecond})(server)
		var failed sync.Map
		all := openLoop(svc, rate, warmUp+trigger+after, &failed)
		time.Sleep(warmUp)
		failed.Range(func(any, any) bool { t.Error("a request failed before the trigger"); return false })
		server.stall(trigger)
		time.Sleep(trigger + 5*time.Second)
		recovered := time.Now()
		time.Sleep(after - 5*time.Second)
		behind = server.behind()
		all.Wait()
		failed.Range(func(sent, err any) bool {
			require.ErrorIs(t, err.(error), layer.ErrAttemptTimeout)
			if sent.(time.Time).After(recovered) {
				late++
			}
			return true
		})
		return late, behind, server.seen
	}
	const requests = int(rate * (warmUp + trigger + after) / time.Second)
	synctest.Test(t, func(t *testing.T) {
		late, behind, seen := run(t, nil)
		assert.Zero(t, late, "requests that failed 5 s after the trigger")
		assert.Less(t, behind, 50*time.Millisecond)
		assert.LessOrEqual(t, seen, requests*12/10+10*int((warmUp+trigger+after)/time.Second)+100)
	})
	synctest.Test(t, func(t *testing.T) { // and the test bites
		late, behind, seen := run(t, layer.NewBudget(time.Minute, 10, 1_000_000))
		assert.Greater(t, late, 400, "requests that failed 5 s after the trigger, of 500")
		assert.Greater(t, behind, 5*time.Second)
		assert.Greater(t, seen, 2*requests)
	})
}

// otherProcess returns a context as it arrives in another process. It ends with ctx, but
// has no values.
type otherProcess struct{ context.Context }

func (otherProcess) Value(any) any { return nil }

// Three tiers retry over a leaf that fails. Without budgets, one request becomes 27. With
// budgets, each tier adds a fifth, and its ten retries per second.
func TestRetryThreeTiers(t *testing.T) {
	const rate, lasts = 50, 30 * time.Second
	run := func(t *testing.T, budget func() *layer.Budget) (seen [4]int64) {
		var counts [4]atomic.Int64
		var svc layer.Service[int, int] = layer.Func[int, int](func(context.Context, int) (int, error) {
			counts[3].Add(1)
			return 0, errServer
		})
		for tier := 2; tier >= 0; tier-- {
			next := layer.Retry(layer.RetryPolicy[int, int]{Budget: budget()}, layer.WithClassifier(failuresAgain[int]))(svc)
			svc = layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
				counts[tier].Add(1)
				_, err := next.Call(otherProcess{ctx}, req)
				if errors.Is(err, errServer) {
					err = errServer // what another process hears of it
				}
				return 0, err
			})
		}
		var failed sync.Map
		openLoop(svc, rate, lasts, &failed).Wait()
		for i := range counts {
			seen[i] = counts[i].Load()
		}
		return seen
	}
	synctest.Test(t, func(t *testing.T) {
		seen := run(t, func() *layer.Budget { return nil })
		for tier := range 3 {
			most := seen[tier]*12/10 + 10*int64(lasts/time.Second) + 100 // which it has at the beginning
			assert.LessOrEqual(t, seen[tier+1], most, "tier %d: %v", tier, seen)
			assert.Greater(t, seen[tier+1], seen[tier], "and it does retry")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		seen := run(t, func() *layer.Budget { return layer.NewBudget(time.Minute, 10, 1_000_000) })
		assert.Greater(t, seen[3], 26*seen[0], "%v", seen)
	})
}
