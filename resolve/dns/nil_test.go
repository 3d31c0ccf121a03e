package dns

import (
	"context"
	"math"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestNilOption(t *testing.T) { require.NotNil(t, New(nil)) }

func TestInvalidOptions(t *testing.T) {
	valid := netip.MustParseAddrPort("10.0.0.1:53")
	for want, set := range map[string]func(){
		"dns: WithServers: address 2 of 2 is not valid":                                func() { WithServers(valid, netip.AddrPort{}) },
		"dns: WithSearch: ndots: -1 must not be negative":                              func() { WithSearch(-1) },
		`dns: WithSearch: domain "a..b": the name has an empty label`:                  func() { WithSearch(1, "a", "a..b") },
		"dns: WithTimeout: -1s must not be negative":                                   func() { WithTimeout(-time.Second) },
		"dns: WithAttempts: -1 must not be negative":                                   func() { WithAttempts(-1) },
		"dns: WithAttempts: 101 is more than 100":                                      func() { WithAttempts(101) },
		"dns: WithRefresh: least: -1ns must not be negative":                           func() { WithRefresh(-1, 0) },
		"dns: WithRefresh: most: -1ns must not be negative":                            func() { WithRefresh(0, -1) },
		"dns: WithRefresh: most 1s is below least 2s: want more, or 0 for the default": func() { WithRefresh(2*time.Second, time.Second) },
		"dns: backoff: max 1s must be at least min 2s":                                 func() { WithBackoff(resolve.Backoff{Min: 2e9, Max: 1e9}) },
		"dns: backoff: jitter NaN must be from 0 to 100":                               func() { WithBackoff(resolve.Backoff{Jitter: math.NaN()}) },
		"dns: WithMetrics: the counter is nil":                                         func() { WithMetrics(nil) },
	} {
		assert.PanicsWithValue(t, want, set)
	}
}

// badCounter panics when it is used.
type badCounter struct{}

func (c badCounter) With(...string) metrics.Counter { return c }
func (badCounter) Add(float64)                      { panic("no such label") }

func TestWithMetricsPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithMetrics(badCounter{}), WithIPv4Only())
		s.put("web", "web.test. 60 A 10.0.0.1")
		_, err := first(t.Context(), r, "web.test:80")
		require.Regexp(t, `^dns: look up: panic at nil_test\.go:\d+: no such label$`, err.Error())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		require.Len(t, watch(ctx, r, "web.test:80").take(), 1)
	})
}
