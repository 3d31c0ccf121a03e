package profiles_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// answers is the Editor of the test's protocol, with the methods that the tests use.
type answers struct{ layer.Editor[request, *reply] }

func (answers) NewResponse(req request, a layer.DirectResponse) *reply {
	header := fields{"message": a.Message}
	if req.contentType != "" {
		header["grpc-status"] = strconv.Itoa(int(a.GRPC))
	}
	for _, f := range a.Header {
		header[f.Name] = f.Value
	}
	return &reply{status: a.Status, from: "here", header: header}
}

func answering() option { return profiles.WithRouteLayers(resend{}) }

// failing is a profile with one route, which has the faults.
func failing(faults ...profiles.Fault) *profiles.Profile {
	return &profiles.Profile{Routes: []profiles.Route{{Name: "r", Match: profiles.Path("/.*"), Faults: faults}}}
}

func abort(share float64, status int) profiles.Fault {
	return profiles.Fault{Fraction: share, Status: status, TTL: time.Hour}
}

// bubbled is a router for a bubble, which ends with the test.
func bubbled(t *testing.T, c profiles.Config, serve func(context.Context, request) (*reply, error)) (*router, *backends) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	bs := &backends{prepare: func(b *backend) { b.serve = serve }}
	c.Target = target
	return profiles.New(ctx, c, access{}, bs.mk, answering()), bs
}

func TestFaultResponse(t *testing.T) {
	c := newCounters()
	p := failing(profiles.Fault{Fraction: 1, Status: 503, GRPC: 8, TTL: time.Hour})
	p.Routes[0].Retry, p.RetryBudget = &profiles.Retry{}, budget()
	r, bs := servingWith(t, profiles.Config{Metrics: c.instruments}, p, nil, answering())
	rsp := send(t, r, "GET", "/")
	assert.Equal(t, 503, rsp.status)
	assert.Equal(t, "injected fault", rsp.header["message"])
	rsp, err := r.Call(t.Context(), request{method: "POST", path: "/", contentType: "application/grpc"})
	require.NoError(t, err)
	assert.Equal(t, "8", rsp.header["grpc-status"])
	assert.Empty(t, bs.calls(), "no target is called, and nothing is retried")
	assert.EqualValues(t, 2, count(c.requests.Requests))
	assert.EqualValues(t, 1, of(c.requests.Responses, "failure"))
	assert.EqualValues(t, 1, of(c.requests.Responses, "success"), "RESOURCE_EXHAUSTED is not a failure in linkerd")
	assert.Zero(t, count(c.tries.Requests))
}

// Shares are consecutive ranges, so that each has its exact size.
func TestFaultShares(t *testing.T) {
	const n = 10_000
	p := failing(abort(0.2, 501), abort(0, 502), abort(0.3, 503))
	r, _ := serving(t, p, nil, answering())
	got := make(map[int]float64)
	for range n {
		got[send(t, r, "GET", "/").status]++
	}
	for status, share := range map[int]float64{501: 0.2, 503: 0.3, 200: 0.5} {
		assert.InDelta(t, share, got[status]/n, 0.03, "%d: six deviations", status)
	}
	assert.Zero(t, got[502])
}

// An instance for each request that meets it.
func TestFaultDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounters()
		injected := labelled{}
		c.requests.FaultsInjected = injected
		src := new(profiles.Static)
		src.Set(target, failing(
			profiles.Fault{Fraction: 0.5, Delay: time.Second, TTL: time.Hour},
			profiles.Fault{Fraction: 0.5, Delay: 2 * time.Second, Status: 500, TTL: time.Hour},
		))
		r, _ := bubbled(t, profiles.Config{Source: src, Metrics: c.instruments, InitialWait: time.Second}, nil)
		seen := make(map[int]bool)
		for range 100 {
			began := time.Now()
			rsp := send(t, r, "GET", "/")
			want := time.Second
			if rsp.status == 500 {
				want *= 2
			}
			assert.Equal(t, want, time.Since(began))
			seen[rsp.status] = true
		}
		assert.Len(t, seen, 2)
		assert.NotZero(t, of(injected, "delay"))
		assert.NotZero(t, of(injected, "error"))
	})
}

func TestFaultJitters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(profiles.Static)
		src.Set(target, failing(profiles.Fault{Fraction: 1, Jitter: time.Second, TTL: time.Hour}))
		r, _ := bubbled(t, profiles.Config{Source: src, InitialWait: time.Second}, nil)
		seen := make(map[time.Duration]bool)
		for range 10 {
			began := time.Now()
			send(t, r, "GET", "/")
			seen[time.Since(began)] = true
			assert.LessOrEqual(t, time.Since(began), time.Second)
		}
		assert.Greater(t, len(seen), 5)
	})
}

// A delay is as a slow target would be: the route's timeout ends it, and it
// counts as that. Limits on a try are below.
func TestTimeoutIncludesFaultDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, retry := range []*profiles.Retry{{}, nil} {
			c := newCounters()
			p := failing(profiles.Fault{Fraction: 1, Delay: time.Minute, TTL: time.Hour})
			p.Routes[0].Timeout, p.Routes[0].AttemptTimeout = 2*time.Second, time.Second
			p.Routes[0].Retry, p.RetryBudget = retry, budget()
			src := new(profiles.Static)
			src.Set(target, p)
			r, bs := bubbled(t, profiles.Config{Source: src, Metrics: c.instruments, InitialWait: time.Second}, nil)
			began := time.Now()
			_, err := r.Call(t.Context(), get)
			require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
			require.NotErrorIs(t, err, layer.ErrNotReady)
			assert.Equal(t, 2*time.Second, time.Since(began))
			assert.EqualValues(t, 1, of(c.requests.Responses, "failure"))
			assert.EqualValues(t, 1, of(c.requests.Timeouts, "response_header"))
			assert.Empty(t, bs.calls())
		}
	})
}

func TestFaultDelayCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounters()
		src := new(profiles.Static)
		src.Set(target, failing(profiles.Fault{Fraction: 1, Delay: time.Minute, TTL: time.Hour}))
		r, _ := bubbled(t, profiles.Config{Source: src, Metrics: c.instruments, InitialWait: time.Second}, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		time.AfterFunc(time.Second, func() { cancel(gone) })
		began := time.Now()
		_, err := r.Call(ctx, get)
		require.ErrorIs(t, err, gone)
		require.EqualError(t, err, "fault web:80: canceled during the injected delay: gone")
		assert.Equal(t, time.Second, time.Since(began))
		assert.EqualValues(t, 1, of(c.requests.Responses, "ignorable"), "no failure of a target")
	})
}

func TestFaultDescribe(t *testing.T) {
	r, _ := serving(t, failing(abort(0.5, 503), abort(0.25, 500)), nil, answering())
	text := layer.Describe[request, *reply](r).String()
	assert.Contains(t, text, "faults")
	assert.Regexp(t, `fault +fraction=0.5 status=503 ends_in=(1h0m0s|59m[0-9.]+s) injected=0`, text)
	assert.Regexp(t, `fault +fraction=0.25 `, text)
}

func TestFaultExplain(t *testing.T) {
	r, _ := serving(t, failing(abort(1, 503)), nil, answering())
	ctx, why := layer.Explain(t.Context())
	_, err := r.Call(ctx, get)
	require.NoError(t, err)
	assert.Regexp(t, `fault +fraction=1 status=503`, why.String())
}

// A delay is, as long as the fault lasts.
func TestDelayIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(profiles.Static)
		src.Set(target, failing(profiles.Fault{Fraction: 1, Delay: time.Second, TTL: time.Minute}))
		r, _ := bubbled(t, profiles.Config{Source: src, InitialWait: time.Second}, nil)
		ctx, why := layer.Explain(t.Context())
		_, err := r.Call(ctx, get)
		require.NoError(t, err)
		assert.Regexp(t, `fault +fraction=1 delay=1s`, why.String())

		time.Sleep(time.Minute)
		ctx, why = layer.Explain(t.Context())
		_, err = r.Call(ctx, get)
		require.NoError(t, err)
		assert.NotContains(t, why.String(), "fault")
	})
}

func TestFaultValidate(t *testing.T) {
	fine := abort(0.1, 503)
	require.NoError(t, fine.Validate())
	for why, change := range map[string]func(*profiles.Fault){
		"fraction -1":            func(f *profiles.Fault) { f.Fraction = -1 },
		"fraction 1.5":           func(f *profiles.Fault) { f.Fraction = 1.5 },
		"delay -1ns":             func(f *profiles.Fault) { f.Delay = -1 },
		"jitter -1ns":            func(f *profiles.Fault) { f.Jitter = -1 },
		"status 199":             func(f *profiles.Fault) { f.Status = 199 },
		"status 1000":            func(f *profiles.Fault) { f.Status = 1000 },
		"gRPC status 17":         func(f *profiles.Fault) { f.GRPC = 17 },
		"without a status":       func(f *profiles.Fault) { f.Status, f.GRPC = 0, 14 },
		"no delay and no status": func(f *profiles.Fault) { f.Status = 0 },
		"ttl -1ns is below 0":    func(f *profiles.Fault) { f.TTL = -1 },
	} {
		f := fine
		change(&f)
		require.ErrorContains(t, f.Validate(), why)
		require.ErrorContains(t, failing(abort(0, 500), f).Validate(), `Routes[0].Faults[1]: route "r": `)
	}
	tenth := abort(0.1, 503)
	all := failing(tenth, tenth, tenth, tenth, tenth, tenth, tenth, tenth, tenth, tenth)
	require.NoError(t, all.Validate())
	require.ErrorContains(t, failing(abort(0.8, 500), abort(0.3, 503)).Validate(), `Faults[1]: route "r": fraction 0.3 is more than the faults before leave`)
	require.NoError(t, failing(abort(0.3, 500), abort(0.7, 503)).Validate())
}

// An invalid fault does not change the others.
func TestFaultsInvalid(t *testing.T) {
	l := newLog()
	bad := profiles.Fault{Fraction: 1, Status: 500, TTL: -1}
	r, _ := servingWith(t, profiles.Config{Log: l.logger()}, failing(bad, abort(1, 503)), nil, answering())
	assert.Equal(t, 503, send(t, r, "GET", "/").status)
	assert.Equal(t, []string{`Routes[0].Faults[0]: route "r": ttl -1ns is below 0`}, l.attrs("left out of a profile", "err"))
}
