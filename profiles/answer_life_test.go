package profiles_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// faulting reports whether a request meets a fault with 503.
func faulting(t *testing.T, r *router) bool {
	t.Helper()
	return send(t, r, "GET", "/").status == 503
}

func TestFaultEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, src, nil)
		fault := abort(1, 503)
		src.send(failing(fault), nil)
		time.Sleep(fault.TTL - 1)
		assert.True(t, faulting(t, r))
		time.Sleep(time.Nanosecond)
		assert.False(t, faulting(t, r))
		assert.False(t, faulting(t, r))
	})
}

// What else changes gives a fault no new time; what is another fault, or
// another route's, has time of its own.
func TestFaultOutlivesOtherChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, src, nil)
		fault := abort(1, 503)
		src.send(failing(fault), nil)
		for i := range 59 {
			time.Sleep(time.Minute)
			p := failing(fault)
			p.Routes[0].Timeout = time.Duration(i+1) * time.Minute
			src.send(p, nil)
			require.True(t, faulting(t, r))
		}
		time.Sleep(time.Minute)
		require.False(t, faulting(t, r), "its hour is over")
		for _, change := range []func(*profiles.Route){
			func(r *profiles.Route) {},
			func(r *profiles.Route) { r.Limit = 5 },
			func(r *profiles.Route) { r.Faults = append(r.Faults, profiles.Fault{}) },
			func(r *profiles.Route) { r.Retryable = true },
		} {
			p := failing(fault)
			change(&p.Routes[0])
			src.send(p, nil)
			require.False(t, faulting(t, r), "and stays so")
		}
		for what, change := range map[string]func(*profiles.Route){
			"name":      func(r *profiles.Route) { r.Name = "other" },
			"condition": func(r *profiles.Route) { r.Match = profiles.PathPrefix("/") },
			"fault":     func(r *profiles.Route) { r.Faults[0].GRPC = 1 },
			"time":      func(r *profiles.Route) { r.Faults[0].TTL++ },
		} {
			p := failing(fault)
			change(&p.Routes[0])
			src.send(p, nil)
			require.True(t, faulting(t, r), what)
			src.send(failing(), nil)
			require.False(t, faulting(t, r))
		}
		src.send(failing(fault), nil)
		require.True(t, faulting(t, r), "a profile was without it: it begins anew")
	})
}

// Of several faults each ends by itself, and the share of one that has ended
// falls to nobody.
func TestFaultsEndOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, src, nil)
		short, long := abort(0.5, 500), abort(0.5, 503)
		short.TTL = time.Minute
		src.send(failing(short, long), nil)
		time.Sleep(time.Minute)
		p := failing(short, long)
		p.Routes[0].Timeout = time.Hour // made again
		for range 2 {
			seen := make(map[int]bool)
			for range 100 {
				seen[send(t, r, "GET", "/").status] = true
			}
			assert.Equal(t, map[int]bool{200: true, 503: true}, seen)
			src.send(p, nil)
		}
	})
}
