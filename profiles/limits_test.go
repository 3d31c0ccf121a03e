package profiles_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func TestTimeout(t *testing.T) {
	const second = time.Second
	after := func(d time.Duration, code int) func(context.Context, request) (*reply, error) {
		return func(ctx context.Context, _ request) (*reply, error) {
			select {
			case <-time.After(d):
				return &reply{status: code}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	for _, tt := range []struct {
		what    string
		timeout time.Duration
		serve   func(context.Context, request) (*reply, error)
		queue   time.Duration // before the endpoint
		ends    time.Duration // with a timeout, if that is tt.timeout
	}{
		{"none", 0, after(time.Hour, 200), 0, time.Hour},
		{"negative is no timeout", -1, after(time.Hour, 200), 0, time.Hour},
		{"in time", second, after(second-1, 200), 0, second - 1},
		{"one try", second, after(time.Hour, 200), 0, second},
		{"all tries together", second, after(400*time.Millisecond, 500), 0, second},
		{"with the time in a queue", second, after(200*time.Millisecond, 200), time.Hour, second},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var source profiles.Static
				source.Set(target, retryable(func(r *profiles.Route) { r.Timeout = tt.timeout }))
				config := profiles.Config{Target: target, Source: &source, InitialWait: second}
				r := profiles.New(ctx, config, access{}, func(string) service {
					return handler(func(ctx context.Context, req request) (*reply, error) {
						if tt.queue > 0 {
							if rsp, err := after(tt.queue, 0)(ctx, req); err != nil {
								return rsp, err
							}
						}
						return tt.serve(ctx, req)
					})
				}, standard())
				began := time.Now()
				_, err := r.Call(ctx, get)
				assert.Equal(t, tt.ends, time.Since(began))
				if tt.ends == tt.timeout {
					assert.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
					assert.NotErrorIs(t, err, layer.ErrNotReady)
				} else {
					assert.NoError(t, err)
				}
			})
		})
	}
}

func TestAttemptTimeout(t *testing.T) {
	for _, again := range []*profiles.Retry{{}, nil} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var source profiles.Static
			source.Set(target, retryable(func(r *profiles.Route) { r.AttemptTimeout, r.Retry = time.Second, again }))
			came := 0
			config := profiles.Config{Target: target, Source: &source, InitialWait: time.Second}
			r := profiles.New(ctx, config, access{}, func(string) service {
				return handler(func(ctx context.Context, req request) (*reply, error) {
					if came++; came == 1 {
						return hang(ctx, req)
					}
					return &reply{status: 200}, nil
				})
			}, standard())
			began := time.Now()
			_, err := r.Call(ctx, get)
			if again != nil {
				require.NoError(t, err)
				assert.Equal(t, 2, came)
			} else {
				require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
				assert.Equal(t, 1, came)
			}
			assert.GreaterOrEqual(t, time.Since(began), time.Second)
			assert.Less(t, time.Since(began), time.Second+time.Microsecond)
		})
	}
}

func TestHedge(t *testing.T) {
	for _, tt := range []struct {
		what   string
		req    request
		change func(*profiles.Profile)
		want   int
	}{
		{"retryable: any request", request{method: "POST", path: "/"}, func(*profiles.Profile) {}, 2},
		{"not retryable: idempotent", get, func(p *profiles.Profile) { p.Routes[0].Retry = nil }, 2},
		{"not retryable: not idempotent", request{method: "POST", path: "/"}, func(p *profiles.Profile) { p.Routes[0].Retry = nil }, 1},
		{"no budget", get, func(p *profiles.Profile) { p.RetryBudget = nil }, 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p := retryable(func(r *profiles.Route) { r.Hedge = time.Second })
				tt.change(p)
				var source profiles.Static
				source.Set(target, p)
				var came atomic.Int64
				config := profiles.Config{Target: target, Source: &source, InitialWait: time.Second}
				r := profiles.New(ctx, config, access{}, func(string) service {
					return handler(func(ctx context.Context, req request) (*reply, error) {
						n := came.Add(1)
						select {
						case <-time.After(time.Minute / time.Duration(n)):
							return &reply{status: 200}, nil
						case <-ctx.Done():
							return nil, context.Cause(ctx)
						}
					})
				}, standard())
				began := time.Now()
				_, err := r.Call(ctx, tt.req)
				require.NoError(t, err)
				assert.EqualValues(t, tt.want, came.Load())
				if tt.want == 2 {
					assert.Equal(t, 31*time.Second, time.Since(began))
				}
			})
		})
	}
}

func TestLimitAndRate(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	p := retryable(func(r *profiles.Route) { r.Limit = 1 })
	r, _ := serving(t, p, func(context.Context, request) (*reply, error) {
		enter <- struct{}{}
		<-leave
		return &reply{status: 200}, nil
	})
	done := make(chan error)
	go func() {
		_, err := r.Call(t.Context(), get)
		done <- err
	}()
	<-enter
	_, err := r.Call(t.Context(), get)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorContains(t, err, "limit web:80")
	leave <- struct{}{}
	require.NoError(t, <-done)

	for _, tt := range []struct {
		rate profiles.Rate
		want int
	}{
		{profiles.Rate{PerSecond: 0.001}, 1},
		{profiles.Rate{PerSecond: 0.001, Burst: 3}, 3},
		{profiles.Rate{PerSecond: -1, Burst: 3}, 5},
		{profiles.Rate{}, 5},
	} {
		r, bs := serving(t, retryable(func(r *profiles.Route) { r.Rate = tt.rate }), status(200))
		for range 5 {
			if _, err = r.Call(t.Context(), get); err != nil {
				require.ErrorIs(t, err, layer.ErrNotReady)
				after, _ := layer.RetryAfter(err)
				assert.Positive(t, after)
			}
		}
		assert.EqualValues(t, tt.want, bs.calls()[target], "%+v", tt.rate)
	}
}

func TestRouteLayersBelowPerRoute(t *testing.T) {
	above := 0
	r, bs := serving(t, retryable(), status(503), profiles.WithPerRoute(func(route profiles.Route, next service) service {
		assert.Equal(t, "r", route.Name)
		return handler(func(ctx context.Context, req request) (*reply, error) {
			above++
			return next.Call(ctx, req)
		})
	}))
	send(t, r, "GET", "/")
	assert.Equal(t, 1, above)
	assert.EqualValues(t, 11, bs.calls()[target])
}

func TestLimitsOutOfRange(t *testing.T) {
	bad := &profiles.Profile{Routes: []profiles.Route{{
		Name: "bad", Match: profiles.Path("/"), Timeout: -1, AttemptTimeout: -1, Hedge: -1, Retry: &profiles.Retry{Max: 100}, Limit: -1,
		Rate: profiles.Rate{PerSecond: -1},
	}}}
	err := bad.Validate()
	for _, say := range []string{
		`Routes[0].Timeout: route "bad": -1ns is below 0`, `.AttemptTimeout: route "bad": -1ns`, `.Hedge: route "bad": -1ns`,
		`.Retry: route "bad": max 100 is not from 0 to 99`, `.Limit: route "bad": -1`, `.Rate: route "bad": -1 per second`,
	} {
		assert.ErrorContains(t, err, say)
	}
	require.NoError(t, profiles.ValidateMatch(bad.Routes[0].Match), "the route holds without them")
	r, bs := serving(t, bad, status(200))
	assert.EqualValues(t, 1, tries(t, r, bs, get))
	for rate, say := range map[profiles.Rate]string{
		{Burst: 1}:                 "a burst without",
		{PerSecond: 1, Burst: -1}:  "burst -1",
		{PerSecond: 1, Burst: 100}: "",
	} {
		if say == "" {
			assert.NoError(t, rate.Validate())
		} else {
			assert.ErrorContains(t, rate.Validate(), say)
		}
	}
}

func TestDescribeRouteLayers(t *testing.T) {
	p := retryable(func(r *profiles.Route) { r.Timeout, r.Limit = time.Second, 7 })
	r, _ := serving(t, p, status(503))
	send(t, r, "GET", "/")
	tree := layer.Describe[request, *reply](r).String()
	for _, say := range []string{"retry_budget=0", "limit      in_flight=0 max=7", "response_header_timeout after=1s", "attempts=100", "retries=10"} {
		assert.Contains(t, tree, say)
	}
}
