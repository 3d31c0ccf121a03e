package layer_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errBreaker = errors.New("the endpoint fails")

// breakerInner is a service that returns the result set by the test.
type breakerInner struct {
	mu    sync.Mutex
	serve func(ctx context.Context) error
	calls atomic.Int64
}

func (a *breakerInner) say(serve func(ctx context.Context) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serve = serve
}

func (a *breakerInner) with(err error) { a.say(func(context.Context) error { return err }) }

func (a *breakerInner) Ready(context.Context) error { return nil }

func (a *breakerInner) Call(ctx context.Context, req int) (int, error) {
	a.calls.Add(1)
	a.mu.Lock()
	serve := a.serve
	a.mu.Unlock()
	if serve == nil {
		return req, nil
	}
	return req, serve(ctx)
}

// breakerClass is a classifier that finds the class of an error in its text.
func breakerClass(o layer.Outcome[int]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, errBreakerThrottle):
		return layer.Throttled
	}
	return layer.Failure
}

var errBreakerThrottle = errors.New("not so fast")

func newBreaker(p layer.BreakerPolicy, opts ...layer.Option[int]) (layer.Service[int, int], *breakerInner) {
	a := &breakerInner{}
	return layer.Breaker[int](p, append(opts, layer.WithClassifier(breakerClass))...)(a), a
}

// breakerBackoff is a backoff without jitter.
var breakerBackoff = layer.Backoff{Min: time.Second, Max: time.Minute}

func breakerCalls(t *testing.T, svc layer.Service[int, int], n int) (err error) {
	t.Helper()
	for i := range n {
		_, err = svc.Call(t.Context(), i)
	}
	return err
}

func breakerState(svc layer.Service[int, int], key string) any {
	return layer.Describe(svc).State.Get(key)
}

func TestBreakerConsecutiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{Backoff: breakerBackoff}, layer.WithTarget[int]("web"))
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 6), errBreaker)
		inner.with(nil)
		require.NoError(t, breakerCalls(t, svc, 1), "a success ends the row")
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 6), errBreaker)
		require.NoError(t, layer.Poll(svc))
		require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker, "the seventh trips it and gets its own error")

		before := inner.calls.Load()
		err := breakerCalls(t, svc, 1)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "breaker web: not ready: 7 consecutive failures, next probe in 1s")
		after, ok := layer.RetryAfter(err)
		require.True(t, ok)
		require.Equal(t, time.Second, after)
		require.Equal(t, before, inner.calls.Load())
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.ErrorContains(t, layer.Poll(svc), "next probe in 1s")
	})
}

func TestBreakerBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		start := time.Now()
		for probes, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
			time.Sleep(wait - 1)
			require.ErrorIs(t, breakerCalls(t, svc, 1), layer.ErrNotReady, "after %v", time.Since(start))
			time.Sleep(time.Nanosecond)
			require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker, "probe %d, after %v", probes, time.Since(start))
		}
		require.EqualValues(t, 1, breakerState(svc, "trips"), "probes that fail are no trips")
		require.EqualValues(t, 4, breakerState(svc, "failed_probes"))
		require.ErrorContains(t, breakerCalls(t, svc, 1), "failed probes: 4, next probe in 16s")
		inner.with(nil)
		time.Sleep(16 * time.Second)
		require.NoError(t, breakerCalls(t, svc, 3))
		require.Equal(t, "closed", breakerState(svc, "state"))

		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Equal(t, time.Second, breakerState(svc, "next_probe"), "a success resets the backoff")
		require.EqualValues(t, 2, breakerState(svc, "trips"))
	})
}

func TestBreakerDefaults(t *testing.T) {
	p := layer.UnifiedBreaker()
	require.Equal(t, layer.BreakerPolicy{
		ConsecutiveFailures: 7, MinSuccessRate: 0.8, Window: 10 * time.Second, MinRequests: 5,
		Backoff: layer.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
	}, p)
	require.NoError(t, p.Validate())
	require.NoError(t, layer.BreakerPolicy{}.Validate())

	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 50 {
			svc, inner := newBreaker(layer.BreakerPolicy{})
			inner.with(errBreaker)
			breakerCalls(t, svc, 7)
			after, ok := layer.RetryAfter(breakerCalls(t, svc, 1))
			require.True(t, ok)
			require.GreaterOrEqual(t, after, time.Second)
			require.LessOrEqual(t, after, 1500*time.Millisecond)
			waits[after] = true
		}
		require.Greater(t, len(waits), 40, "the wait has jitter")
	})
}

func TestBreakerPolicyValidate(t *testing.T) {
	for want, p := range map[string]layer.BreakerPolicy{
		"BreakerPolicy.MinSuccessRate is 1.1, must be 0 to 1":              {MinSuccessRate: 1.1},
		"BreakerPolicy.MinSuccessRate is -0.1, must be 0 to 1":             {MinSuccessRate: -0.1},
		"BreakerPolicy.Window is 9ms, must be at least 10ms":               {Window: 9 * time.Millisecond},
		"BreakerPolicy.MinRequests is 1000001, must be 0 to 1000000":       {MinRequests: 1000001},
		"BreakerPolicy.MinRequests is -1, must be 0 to 1000000":            {MinRequests: -1},
		"BreakerPolicy.Backoff: backoff: max 1ms must be at least min 1s":  {Backoff: layer.Backoff{Min: time.Second, Max: time.Millisecond}},
		"BreakerPolicy.Backoff: backoff: jitter 101 must be from 0 to 100": {Backoff: layer.Backoff{Jitter: 101}},
		"BreakerPolicy.Backoff: backoff: min -1s must be more than 0":      {Backoff: layer.Backoff{Min: -time.Second}},
	} {
		require.EqualError(t, p.Validate(), want)
	}
	require.NoError(t, layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 1, Window: 10 * time.Millisecond, MinRequests: 1_000_000}.Validate())
	require.NoError(t, layer.BreakerPolicy{Backoff: layer.Backoff{Max: time.Millisecond}}.Validate())
	require.NoError(t, layer.BreakerPolicy{Backoff: layer.Backoff{Min: time.Hour}}.Validate())
}

func TestBreakerDisabled(t *testing.T) {
	inner := &breakerInner{}
	require.Same(t, inner, layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: -1})(inner))
}

func TestBreakerSuccessRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 4), errBreaker, "four requests say nothing yet")
		require.NoError(t, layer.Poll(svc))
		breakerCalls(t, svc, 1)
		require.EqualError(t, breakerCalls(t, svc, 1), "breaker: not ready: 0 of 5 requests succeeded in 10s, next probe in 1s")

		inner.with(nil)
		time.Sleep(time.Second)
		require.NoError(t, breakerCalls(t, svc, 8))
		require.EqualValues(t, 7, breakerState(svc, "requests"), "the probe closes it and counts no further")
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Equal(t, 0.875, breakerState(svc, "ratio"))
		require.NoError(t, layer.Poll(svc))
		breakerCalls(t, svc, 1)
		require.ErrorContains(t, breakerCalls(t, svc, 1), "7 of 9 requests succeeded in 10s")
	})
}

// As in linkerd, the success rate is checked after every response. If a response reaches
// MinRequests, it may open the breaker, even if it is a success.
func TestBreakerSuccessRateAtMinRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 4)
		inner.with(nil)
		require.NoError(t, breakerCalls(t, svc, 1))
		require.ErrorContains(t, breakerCalls(t, svc, 1), "1 of 5 requests succeeded")
	})
}

func TestBreakerWindowExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 0.5, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 4)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 0, breakerState(svc, "requests"))
		breakerCalls(t, svc, 4)
		require.NoError(t, layer.Poll(svc))
		time.Sleep(9 * time.Second)
		breakerCalls(t, svc, 1)
		require.Error(t, layer.Poll(svc))
	})
}

func TestBreakerThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 3, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 2)
		inner.with(errBreakerThrottle)
		require.ErrorIs(t, breakerCalls(t, svc, 100), errBreakerThrottle)
		require.NoError(t, layer.Poll(svc), "it does not count in a row")
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Error(t, layer.Poll(svc), "it does not break a row")

		inner.with(errBreakerThrottle)
		time.Sleep(time.Second)
		require.ErrorIs(t, breakerCalls(t, svc, 1), errBreakerThrottle)
		require.ErrorContains(t, layer.Poll(svc), "failed probes: 1", "a probe is judged strictly")

		svc, inner = newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 3, MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreakerThrottle)
		breakerCalls(t, svc, 5)
		require.ErrorContains(t, layer.Poll(svc), "0 of 5 requests succeeded")
	})
}

func TestBreakerIgnorable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, MinSuccessRate: 1, MinRequests: 1, Backoff: breakerBackoff})
		for _, err := range []error{
			layer.ErrClosed, &layer.Error{Kind: layer.ErrNotReady}, &layer.Error{Kind: layer.ErrInjected}, layer.ErrFailFast,
		} {
			inner.with(err)
			require.ErrorIs(t, breakerCalls(t, svc, 10), err)
			require.NoError(t, layer.Poll(svc))
		}
		ctx, cancel := context.WithCancel(t.Context())
		inner.say(func(context.Context) error { cancel(); return context.Canceled })
		_, err := svc.Call(ctx, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, layer.Poll(svc))
		inner.say(func(context.Context) error { panic("ours") })
		require.PanicsWithValue(t, "ours", func() { breakerCalls(t, svc, 1) })
		require.NoError(t, layer.Poll(svc))
		require.EqualValues(t, 0, breakerState(svc, "requests"))
	})
}

func TestBreakerLateResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, MinSuccessRate: 0.5, Backoff: breakerBackoff})
		late := make(chan error)
		inner.say(func(context.Context) error { return <-late })
		for range 4 {
			go svc.Call(t.Context(), 0)
		}
		synctest.Wait()
		inner.with(errBreaker)
		breakerCalls(t, svc, 2)
		require.Equal(t, "open", breakerState(svc, "state"))
		late <- nil
		synctest.Wait()
		require.Equal(t, "open", breakerState(svc, "state"), "a late success does not close it")
		late <- errBreaker
		synctest.Wait()
		require.Equal(t, time.Second, breakerState(svc, "next_probe"), "a late failure does not prolong the wait")

		inner.with(nil)
		time.Sleep(time.Second)
		require.NoError(t, breakerCalls(t, svc, 1))
		late <- errBreaker
		late <- errBreaker
		synctest.Wait()
		require.Equal(t, "closed", breakerState(svc, "state"), "nor do they count after the recovery")
		require.EqualValues(t, 0, breakerState(svc, "failures"))
		require.EqualValues(t, 0, breakerState(svc, "requests"))
	})
}

type breakerWaits struct{ layer.BaseProtocol[int, int] }

func (breakerWaits) RetryAfter(int, error) (time.Duration, bool) { return 5 * time.Second, true }

func TestBreakerRetryAfter(t *testing.T) {
	hint := &layer.Error{Kind: errBreaker, RetryAfter: 30 * time.Second}
	for name, tt := range map[string]struct {
		policy layer.BreakerPolicy
		opts   []layer.Option[int]
		want   time.Duration
	}{
		"ignored":            {policy: layer.BreakerPolicy{}, want: time.Second},
		"from the error":     {policy: layer.BreakerPolicy{RetryAfter: true}, want: 30 * time.Second},
		"from the protocol":  {layer.BreakerPolicy{RetryAfter: true}, []layer.Option[int]{layer.WithProtocol(breakerWaits{})}, 5 * time.Second},
		"no longer than Max": {policy: layer.BreakerPolicy{RetryAfter: true, Backoff: layer.Backoff{Min: time.Second, Max: 9 * time.Second}}, want: 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.policy.ConsecutiveFailures = 1
				if tt.policy.Backoff == (layer.Backoff{}) {
					tt.policy.Backoff = breakerBackoff
				}
				svc, inner := newBreaker(tt.policy, tt.opts...)
				inner.with(hint)
				breakerCalls(t, svc, 1)
				require.Equal(t, tt.want, breakerState(svc, "next_probe"))
			})
		})
	}
}

func TestBreakerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trips counter
		var tripped gauge
		rejected := byLabel{}
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, Backoff: breakerBackoff},
			layer.WithMetrics[int](layer.Instruments{BreakerOpened: &trips, BreakerOpen: &tripped, LayerRejections: rejected}))
		inner.with(errBreaker)
		breakerCalls(t, svc, 5)
		require.Equal(t, []float64{1, 1, 3}, []float64{float64(trips), float64(tripped), float64(*rejected["breaker"])})
		time.Sleep(time.Second)
		breakerCalls(t, svc, 1)
		time.Sleep(2 * time.Second)
		inner.with(nil)
		breakerCalls(t, svc, 1)
		require.Equal(t, []float64{1, 0, 3}, []float64{float64(trips), float64(tripped), float64(*rejected["breaker"])})
	})
}

func TestBreakerAllocations(t *testing.T) {
	svc, _ := newBreaker(layer.UnifiedBreaker())
	require.Zero(t, testing.AllocsPerRun(100, func() { svc.Call(context.Background(), 1) }))
	answer := &breakerReply{Status: 200}
	replies := newReplyBreaker(func(context.Context) *breakerReply { return answer })
	require.Zero(t, testing.AllocsPerRun(100, func() { replies.Call(context.Background(), 1) }))
}

// A layer with a success rate warns once when it is made, if it has a logger.
func TestBreakerWarns(t *testing.T) {
	var text strings.Builder
	log := layer.WithLogger[int](slog.New(slog.NewTextHandler(&text, nil)))
	leaf := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	layer.NewStack[int](log).Breaker(layer.BreakerPolicy{}).Service(leaf)
	layer.Breaker[int, int](layer.UnifiedBreaker())(leaf)
	layer.Breaker[int, int](layer.UnifiedBreaker(), layer.WithLogger[int](nil))(leaf)
	assert.Empty(t, text.String())
	made := layer.NewStack[int](log).WithTarget("web").Breaker(layer.UnifiedBreaker())
	for range 3 {
		svc := made.Service(leaf)
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, strings.Count(text.String(), "level=WARN"), text.String())
	assert.Contains(t, text.String(), "use it only for each endpoint below a balancer, or else the zero BreakerPolicy")
	assert.Contains(t, text.String(), "target=web min_success_rate=0.8")
}

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

// The headers of a successful probe close the breaker, although its body may never end. If the body
// fails nevertheless, the probe has failed.
func TestBreakerProbeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := &breakerReply{Status: 500}
		svc := newReplyBreaker(func(context.Context) *breakerReply { return answer })
		svc.Call(t.Context(), 0)
		time.Sleep(time.Second)
		answer = &breakerReply{200, breakerBody{errBreaker}}
		probe, err := svc.Call(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, "closed", layer.Describe(svc).State.Get("state"))
		other, err := svc.Call(t.Context(), 0)
		require.NoError(t, err)
		io.ReadAll(probe.Body)
		_, err = svc.Call(t.Context(), 0)
		require.ErrorContains(t, err, "failed probes: 1, next probe in 2s")
		require.NoError(t, probe.Body.Close())
		require.NoError(t, other.Body.Close())
	})
}

// A probe without a response does not keep the breaker open for ever. The next one is sent after a
// second, and the first success of both closes the breaker.
func TestBreakerProbeHangs(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
			inner.with(errBreaker)
			breakerCalls(t, svc, 1)
			time.Sleep(time.Second)
			hangs := make(chan error)
			inner.say(func(context.Context) error { return <-hangs })
			go svc.Call(t.Context(), 0)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			require.Error(t, svc.Ready(ctx))
			start := time.Now()
			require.NoError(t, svc.Ready(t.Context()))
			require.Equal(t, time.Second/2, time.Since(start))
			if first {
				hangs <- nil
				synctest.Wait()
				require.Equal(t, "closed", breakerState(svc, "state"))
				return
			}
			inner.with(nil)
			require.NoError(t, breakerCalls(t, svc, 1))
			require.Equal(t, "closed", breakerState(svc, "state"))
			hangs <- errBreaker
			synctest.Wait()
			require.Equal(t, "closed", breakerState(svc, "state"))
		})
	}
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

// A breaker that is removed while open does not count in the gauge any more.
func TestBreakerGaugeAfterRemoval(t *testing.T) {
	tripped := level{new(shared)}
	made := layer.Breaker[int](layer.BreakerPolicy{ConsecutiveFailures: 1}, layer.WithMetrics[int](layer.Instruments{BreakerOpen: tripped}))
	fail := func() {
		svc := made(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errors.New("dead") }))
		_, err := svc.Call(t.Context(), 1)
		require.Error(t, err)
		require.EqualValues(t, 1, tripped.now())
		runtime.KeepAlive(svc)
	}
	fail()
	for began := time.Now(); tripped.now() != 0; runtime.Gosched() {
		runtime.GC()
		require.Less(t, time.Since(began), time.Minute)
	}
}

// An open breaker admits a request with PastBreakers. A success of it closes the breaker.
func TestBreakerPastBreakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, err }))
		call := func(ctx context.Context) error { _, err := svc.Call(ctx, 0); return err }
		past := layer.PastBreakers(t.Context())

		err = errBreaker
		require.ErrorIs(t, call(past), errBreaker)
		require.ErrorIs(t, call(t.Context()), layer.ErrNotReady, "it counts while the breaker is closed")
		require.ErrorIs(t, call(past), errBreaker)
		require.ErrorIs(t, call(t.Context()), layer.ErrNotReady, "a failure changes nothing")
		err = nil
		require.NoError(t, call(past))
		require.Equal(t, "closed", layer.Describe(svc).State.Get("state"))
		require.NoError(t, call(t.Context()))
	})
}

// In failsafe-go, gobreaker and finagle a half-open breaker waited for a probe that never
// ended. The probe was canceled, rejected below, or panicked. Here the next request is the
// probe.
func TestBreakerCanceledProbe(t *testing.T) {
	for name, probe := range map[string]func(t *testing.T, svc layer.Service[int, int], inner *breakerInner){
		"cancelled": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			ctx, cancel := context.WithCancel(t.Context())
			inner.say(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
			go svc.Call(ctx, 0)
			synctest.Wait()
			require.Equal(t, "probing", breakerState(svc, "state"))
			require.ErrorContains(t, breakerCalls(t, svc, 1), "a probe is in flight")
			cancel()
			synctest.Wait()
		},
		"rejected": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.with(&layer.Error{Kind: layer.ErrNotReady})
			breakerCalls(t, svc, 3)
			require.EqualValues(t, 4, inner.calls.Load(), "each of the three was a probe")
		},
		"injected": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.with(layer.ErrInjected)
			breakerCalls(t, svc, 1)
		},
		"panic": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.say(func(context.Context) error { panic("ours") })
			require.Panics(t, func() { breakerCalls(t, svc, 1) })
		},
		"goexit": func(_ *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.say(func(context.Context) error { runtime.Goexit(); return nil })
			go svc.Call(context.Background(), 0)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
				inner.with(errBreaker)
				breakerCalls(t, svc, 1)
				time.Sleep(time.Second)
				probe(t, svc, inner)
				require.Equal(t, "probing", breakerState(svc, "state"), "it decides nothing")
				require.NoError(t, layer.Poll(svc), "the place is free")
				inner.with(nil)
				require.NoError(t, breakerCalls(t, svc, 1))
				require.Equal(t, "closed", breakerState(svc, "state"))
			})
		})
	}
}

func TestBreakerReadyWaitsForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, errBreaker)
		defer cancel()
		require.ErrorIs(t, svc.Ready(ctx), errBreaker)
		start := time.Now()
		require.NoError(t, svc.Ready(t.Context()))
		require.Equal(t, time.Second/2, time.Since(start))

		answer := make(chan error)
		inner.say(func(context.Context) error { return <-answer })
		go svc.Call(t.Context(), 0)
		synctest.Wait()
		require.ErrorContains(t, layer.Poll(svc), "a probe is in flight")
		ready := make(chan time.Duration, 2)
		for range 2 {
			go func() {
				assert.NoError(t, svc.Ready(t.Context()))
				ready <- time.Since(start)
			}()
		}
		time.Sleep(time.Second / 2)
		start = time.Now()
		answer <- errBreaker
		require.Equal(t, 2*time.Second, <-ready, "the probe failed: they wait for the next")
		require.Equal(t, 2*time.Second, <-ready)
		go svc.Call(t.Context(), 0)
		synctest.Wait()
		go func() { ready <- 0; assert.NoError(t, svc.Ready(t.Context())); ready <- time.Since(start) }()
		<-ready
		synctest.Wait()
		start = time.Now()
		answer <- nil
		require.Zero(t, <-ready, "the probe succeeded: they go on")
	})
}

// breakerBusy is a service with readiness that the test sets.
type breakerBusy struct {
	breakerInner
	ready chan struct{}
}

func (b *breakerBusy) Ready(context.Context) error { <-b.ready; return nil }

// The breaker may open while Ready waits for inner.
func TestBreakerReadyOpensDuringWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &breakerBusy{ready: make(chan struct{})}
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})(inner)
		start, done := time.Now(), make(chan time.Duration)
		go func() {
			assert.NoError(t, svc.Ready(t.Context()))
			done <- time.Since(start)
		}()
		synctest.Wait()
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		close(inner.ready)
		require.Equal(t, time.Second, <-done)
	})
}

// Many requests meet a breaker over a service that never recovers. Its probes end in every
// way, and at most one is in flight at a time.
func TestBreakerOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes, most, sent atomic.Int64
		var storm atomic.Bool
		inner := layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
			if !storm.Load() {
				return 0, errBreaker
			}
			defer probes.Add(-1)
			if n := probes.Add(1); n > 1 {
				most.Store(n)
			}
			sent.Add(1)
			time.Sleep(time.Duration(req%7) * time.Millisecond)
			switch req % 4 {
			case 0:
				return 0, errBreaker
			case 1:
				return 0, layer.ErrNotReady
			case 2:
				panic("ours")
			}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		svc := layer.Breaker[int, int](layer.BreakerPolicy{
			ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond},
		})(inner)
		svc.Call(t.Context(), 0)
		storm.Store(true)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				for j := range 50 {
					ctx, cancel := context.WithCancel(t.Context())
					go func() { time.Sleep(3 * time.Millisecond); cancel() }()
					func() {
						defer func() { recover() }()
						svc.Call(ctx, i+j)
					}()
					cancel()
					time.Sleep(time.Duration(1+i%5) * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.Zero(t, most.Load(), "so many at a time")
		require.Greater(t, sent.Load(), int64(10))
	})
}
