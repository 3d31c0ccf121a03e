package profiles_test

import (
	"strconv"
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

func TestFaultTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, profiles.Config{Source: src}, nil)
		fault := abort(1, 503)
		src.send(failing(fault), nil)
		time.Sleep(fault.TTL - 1)
		assert.True(t, faulting(t, r))
		time.Sleep(time.Nanosecond)
		assert.False(t, faulting(t, r))
		assert.False(t, faulting(t, r))
	})
}

// A change of the route begins the TTL again. Another change of the profile does
// not.
func TestFaultTTLOfChangedRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, profiles.Config{Source: src}, nil)
		fault := abort(1, 503)
		src.send(failing(fault), nil)
		for i := range 59 {
			time.Sleep(time.Minute)
			p := failing(fault)
			p.Name = "web" + strconv.Itoa(i)
			src.send(p, nil)
			require.True(t, faulting(t, r))
		}
		time.Sleep(time.Minute)
		require.False(t, faulting(t, r))
		p := failing(fault)
		p.Routes[0].Limit = 5
		src.send(p, nil)
		require.True(t, faulting(t, r))
	})
}

// Each fault ends separately. The fraction of one that ended is forwarded.
func TestFaultTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newScript()
		r, _ := bubbled(t, profiles.Config{Source: src}, nil)
		short, long := abort(0.5, 500), abort(0.5, 503)
		short.TTL = time.Minute
		src.send(failing(short, long), nil)
		time.Sleep(time.Minute)
		seen := make(map[int]bool)
		for range 100 {
			seen[send(t, r, "GET", "/").status] = true
		}
		assert.Equal(t, map[int]bool{200: true, 503: true}, seen)
	})
}
