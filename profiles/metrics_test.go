package profiles_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// counters are instruments that the test reads.
type counters struct{ requests, tries layer.Instruments }

func newCounters() *counters {
	some := func() layer.Instruments {
		return layer.Instruments{
			Requests: new(counter), Rejections: new(counter), Responses: labelled{}, RetriesSkipped: labelled{},
			Retries: new(counter), Timeouts: labelled{}, LayerRejections: labelled{},
		}
	}
	return &counters{some(), some()}
}

func (c *counters) instruments(profiles.Route) (requests, tries layer.Instruments) {
	return c.requests, c.tries
}

type counter struct{ n atomic.Int64 }

func (c *counter) With(...string) metrics.Counter { return c }
func (c *counter) Add(delta float64)              { c.n.Add(int64(delta)) }

func count(c metrics.Counter) int64 { return c.(*counter).n.Load() }

// labelled is a counter for each value of a label.
type labelled map[string]*counter

func (l labelled) With(label ...string) metrics.Counter {
	if l[label[1]] == nil {
		l[label[1]] = new(counter)
	}
	return l[label[1]]
}

func (l labelled) Add(float64) {}

func of(c metrics.Counter, label string) int64 { return count(c.(labelled)[label]) }

func TestMetricsBudgetExhausted(t *testing.T) {
	c := newCounters()
	r, bs := servingWith(t, profiles.Config{Metrics: c.instruments}, retryable(), status(503))
	assert.EqualValues(t, 11, tries(t, r, bs, get))
	assert.EqualValues(t, 1, of(c.requests.RetriesSkipped, "budget"))
	assert.EqualValues(t, 1, tries(t, r, bs, get))
	assert.EqualValues(t, 2, of(c.requests.RetriesSkipped, "budget"))
	assert.EqualValues(t, 10, count(c.requests.Retries))
}

// A request is counted once, and each of its tries.
func TestMetrics(t *testing.T) {
	c := newCounters()
	left := 3
	r, _ := servingWith(t, profiles.Config{Metrics: c.instruments}, retryable(), func(context.Context, request) (*reply, error) {
		if left--; left >= 0 {
			return &reply{status: 500}, nil
		}
		return &reply{status: 200}, nil
	})
	send(t, r, "GET", "/")
	assert.EqualValues(t, 1, count(c.requests.Requests))
	assert.EqualValues(t, 1, of(c.requests.Responses, "success"))
	assert.EqualValues(t, 0, of(c.requests.Responses, "failure"))
	assert.EqualValues(t, 4, count(c.tries.Requests))
	assert.EqualValues(t, 3, of(c.tries.Responses, "failure"))
	assert.EqualValues(t, 1, of(c.tries.Responses, "success"))
}

// route_retryable_total has only retryable routes. Without a budget a route is not retryable.
func TestAttemptTimeoutWithoutRetry(t *testing.T) {
	for _, retry := range []*profiles.Retry{nil, {}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCounters()
			p := retryable(func(r *profiles.Route) { r.Retry, r.AttemptTimeout = retry, time.Millisecond })
			if retry != nil {
				p.RetryBudget = nil
			}
			r, _ := servingWith(t, profiles.Config{Metrics: c.instruments}, p, hang)
			_, err := r.Call(t.Context(), get)
			require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
			assert.Empty(t, c.requests.RetriesSkipped)
			assert.EqualValues(t, 1, of(c.requests.Timeouts, "response_header"))
		})
	}
}

// A Retry above the Router does not change the timeout of an attempt.
func TestAttemptTimeoutBelowRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := retryable(func(r *profiles.Route) { r.Retry, r.AttemptTimeout = nil, time.Millisecond })
		r, bs := serving(t, p, hang)
		svc := layer.Retry[request, *reply](layer.RetryPolicy[request, *reply]{MaxAttempts: 2})(r)
		_, err := svc.Call(t.Context(), get)
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		assert.EqualValues(t, 1, bs.calls()[target])
	})
}

func TestMetricsOfTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounters()
		p := retryable(func(r *profiles.Route) { r.Timeout = time.Millisecond })
		r, _ := servingWith(t, profiles.Config{Metrics: c.instruments}, p, hang)
		_, err := r.Call(t.Context(), get)
		require.ErrorIs(t, err, layer.ErrTimeout)
		assert.EqualValues(t, 1, of(c.requests.Responses, "failure"))
		assert.EqualValues(t, 1, of(c.requests.Timeouts, "response_header"))
	})
}

// With LazyRoutes, the layers and instruments of a route are made for its first request. The TTL of a fault
// counts from the profile, nevertheless.
func TestLazyRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		var made []string
		instruments := func(route profiles.Route) (requests, tries layer.Instruments) {
			made = append(made, route.Name)
			return layer.Instruments{}, layer.Instruments{}
		}
		r, _ := bubbled(t, profiles.Config{Source: src, Metrics: instruments, LazyRoutes: true}, nil)
		fault := abort(1, 503)
		src.send(&profiles.Profile{Routes: []profiles.Route{
			{Name: "used", Match: profiles.PathPrefix("/used"), Faults: []profiles.Fault{fault}},
			{Name: "unused", Match: profiles.PathPrefix("/unused")},
		}}, nil)
		require.Empty(t, made)
		time.Sleep(fault.TTL)
		require.Equal(t, 200, send(t, r, "GET", "/used").status)
		require.Equal(t, 200, send(t, r, "GET", "/used").status)
		require.Equal(t, []string{"used"}, made)
	})
}
