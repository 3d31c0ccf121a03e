package profiles_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// resend is the Replayer of the test's protocol. Its requests can be sent again
// unchanged. Only GET is idempotent. It counts discarded responses.
type resend struct {
	layer.BaseProtocol[request, *reply]
	answers
	discarded *atomic.Int64
}

func (resend) Idempotent(r request) bool                      { return r.method == "GET" }
func (resend) RetryAfter(*reply, error) (time.Duration, bool) { return time.Hour, true }

func (resend) Complete(_ context.Context, r *reply, o layer.Observer) *reply {
	if r.open {
		r.end = o.End
		return r
	}
	o.End(nil)
	return r
}

// Classify finds one error of an endpoint, after which a request may be sent again.
func (resend) Classify(o layer.Outcome[*reply]) layer.Class {
	if errors.Is(o.Err, errPeer) {
		return layer.Retryable
	}
	return layer.DefaultClassifier(o)
}

func (resend) Outline(r *reply) string {
	outline := "status " + strconv.Itoa(r.status)
	if code := r.header["grpc-status"]; code != "" {
		outline += ", gRPC status " + code
	}
	return outline
}

func (r resend) Drain(*reply) {
	if r.discarded != nil {
		r.discarded.Add(1)
	}
}

func standardWith(discarded *atomic.Int64) option {
	return profiles.WithRouteLayers(resend{discarded: discarded})
}

func standard() option { return standardWith(nil) }

var errPeer = errors.New("peer")

// budget allows 10 retries in 10 seconds, for any requests.
func budget() *profiles.RetryBudget {
	return &profiles.RetryBudget{MinPerSecond: 1, TTL: 10 * time.Second}
}

func retryable(change ...func(*profiles.Route)) *profiles.Profile {
	r := profiles.Route{Name: "r", Match: profiles.Path("/.*"), Retry: &profiles.Retry{NonIdempotent: true}}
	for _, f := range change {
		f(&r)
	}
	return &profiles.Profile{Routes: []profiles.Route{r}, RetryBudget: budget()}
}

// serving is a router over backends that all answer with serve.
func serving(
	t *testing.T, p *profiles.Profile, serve func(ctx context.Context, req request) (*reply, error), opts ...option,
) (*router, *backends) {
	return servingWith(t, profiles.Config{}, p, serve, opts...)
}

// servingWith is serving for a router with the other fields of c.
func servingWith(
	t *testing.T, c profiles.Config, p *profiles.Profile, serve func(ctx context.Context, req request) (*reply, error), opts ...option,
) (*router, *backends) {
	bs := &backends{prepare: func(b *backend) { b.serve = serve }}
	return routerWith(t, c, p, bs, append([]option{standard()}, opts...)...), bs
}

func status(code int) func(context.Context, request) (*reply, error) {
	return func(context.Context, request) (*reply, error) { return &reply{status: code}, nil }
}

// tries sends one request, and returns how often it came to a backend.
func tries(t *testing.T, r *router, bs *backends, req request) int64 {
	t.Helper()
	before := bs.calls()[target]
	_, _ = r.Call(t.Context(), req)
	return bs.calls()[target] - before
}

var get = request{method: "GET", path: "/"}

func TestRetryPreconditions(t *testing.T) {
	for _, tt := range []struct {
		what   string
		change func(*profiles.Profile)
		want   int64
	}{
		{"retryable, with a budget", func(*profiles.Profile) {}, 11},
		{"not retryable", func(p *profiles.Profile) { p.Routes[0].Retry = nil }, 1},
		{"no budget", func(p *profiles.Profile) { p.RetryBudget = nil }, 1},
		{"an invalid budget", func(p *profiles.Profile) { p.RetryBudget.TTL = time.Millisecond }, 1},
		{"a budget of nothing", func(p *profiles.Profile) { p.RetryBudget.MinPerSecond = 0 }, 1},
		{"no route", func(p *profiles.Profile) { p.Routes[0].Match = profiles.Path("/other") }, 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := retryable()
			tt.change(p)
			r, bs := serving(t, p, status(503))
			assert.Equal(t, tt.want, tries(t, r, bs, get))
		})
	}
}

func TestRetryOfNonIdempotentRequests(t *testing.T) {
	for _, tt := range []struct {
		method  string
		retry   *profiles.Retry
		timeout time.Duration
		want    int64
	}{
		{"GET", &profiles.Retry{}, 0, 11},
		{"POST", &profiles.Retry{}, 0, 1},
		{"POST", &profiles.Retry{Max: 3}, time.Hour, 1},
		{"POST", &profiles.Retry{NonIdempotent: true}, 0, 11},
		{"GET", nil, 0, 1},
	} {
		t.Run(fmt.Sprintf("%s %+v", tt.method, tt.retry), func(t *testing.T) {
			p := one(profiles.Route{Retry: tt.retry, AttemptTimeout: tt.timeout})
			p.RetryBudget = budget()
			r, bs := serving(t, p, status(503))
			assert.Equal(t, tt.want, tries(t, r, bs, request{method: tt.method, path: "/"}))
		})
	}
}

func TestRetryTriggers(t *testing.T) {
	grpc := request{method: "POST", path: "/", contentType: "application/grpc"}
	answer := func(code int, header, trailer fields) func(context.Context, request) (*reply, error) {
		return func(context.Context, request) (*reply, error) {
			return &reply{status: code, header: header, trailer: trailer}, nil
		}
	}
	fail := func(err error) func(context.Context, request) (*reply, error) {
		return func(context.Context, request) (*reply, error) { return nil, err }
	}
	for _, tt := range []struct {
		what  string
		req   request
		serve func(context.Context, request) (*reply, error)
		again bool
	}{
		{"success", get, status(200), false},
		{"5xx", get, status(500), true},
		{"4xx", get, status(400), false},
		{"any method", request{method: "POST", path: "/"}, status(500), true},
		{"class failure", get, status(404), true},
		{"class success", get, status(503), false},
		{"gRPC status in the header", grpc, answer(200, fields{"grpc-status": "14"}, nil), true},
		{"gRPC status in the header, RESOURCE_EXHAUSTED", grpc, answer(200, fields{"grpc-status": "8"}, nil), false},
		{"gRPC, nothing but a bad HTTP status, no class", request{method: "POST", path: "/none", contentType: "application/grpc"}, status(500), false},
		{"no gRPC request", request{method: "POST", path: "/none"}, answer(200, fields{"grpc-status": "14"}, nil), false},
		{"what an endpoint is to blame for", get, fail(errPeer), true},
		{"another error", get, fail(errors.New("odd")), false},
		{"a time limit", get, fail(&layer.Error{Layer: "timeout", Kind: layer.ErrTimeout}), false},
		{"fail-fast", get, fail(&layer.Error{Layer: "queue", Kind: layer.ErrFailFast}), false},
		{"a refusal", get, fail(&layer.Error{Layer: "limit", Kind: layer.ErrNotReady}), false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := retryable(func(r *profiles.Route) {
				r.Match = profiles.Path("/")
				r.Classes = []profiles.ResponseClass{
					{Match: profiles.Status{Min: 404, Max: 404}, Failure: true}, {Match: profiles.Status{Min: 503, Max: 503}},
				}
			})
			p.Routes = append(p.Routes, profiles.Route{Match: profiles.Path("/none"), Retry: &profiles.Retry{NonIdempotent: true}})
			r, bs := serving(t, p, tt.serve)
			assert.Equal(t, tt.again, tries(t, r, bs, tt.req) > 1)
		})
	}
}

func TestRetryWithoutBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		bs := &backends{prepare: func(b *backend) { b.serve = status(503) }}
		var source profiles.Static
		source.Set(target, retryable())
		r := profiles.New(ctx, profiles.Config{Target: target, Source: &source, InitialWait: time.Second}, access{}, bs.mk, standard())
		began := time.Now()
		rsp, err := r.Call(ctx, get)
		require.NoError(t, err)
		assert.Equal(t, 503, rsp.status, "the last response is returned")
		assert.EqualValues(t, 11, bs.calls()[target])
		assert.Less(t, time.Since(began), time.Microsecond, "nor is Retry-After waited for")
		cancel()
	})
}

func TestRetryWithoutMaximum(t *testing.T) {
	many := func(p *profiles.Profile) *profiles.Profile {
		p.RetryBudget.MinPerSecond = 1000
		return p
	}
	r, bs := serving(t, many(retryable()), status(503))
	assert.EqualValues(t, 100, tries(t, r, bs, get), "but that of layer.Retry")
	r, bs = serving(t, many(retryable(func(r *profiles.Route) { r.Retry.Max = 2 })), status(503))
	assert.EqualValues(t, 3, tries(t, r, bs, get))
}

func TestRetryDrawsAnotherTarget(t *testing.T) {
	p := retryable()
	p.RetryBudget.MinPerSecond = 1000
	p.Targets = []profiles.Target{{Authority: "bad:80", Weight: 1}, {Authority: "good:80", Weight: 1}}
	bs := &backends{prepare: func(b *backend) {
		if b.authority == "bad:80" {
			b.serve = status(500)
		}
	}}
	r := routerOf(t, p, bs, standard())
	for range 100 {
		assert.Equal(t, 200, send(t, r, "GET", "/").status)
	}
	assert.NotZero(t, bs.calls()["bad:80"])
	assert.EqualValues(t, 100, bs.calls()["good:80"])
}

func TestRetryDrainsResponses(t *testing.T) {
	discarded := new(atomic.Int64)
	bs := &backends{prepare: func(b *backend) { b.serve = status(503) }}
	r := routerOf(t, retryable(), bs, standardWith(discarded))
	assert.Equal(t, 503, send(t, r, "GET", "/").status)
	assert.EqualValues(t, 10, discarded.Load(), "all but the last")
}

func hang(ctx context.Context, _ request) (*reply, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}
