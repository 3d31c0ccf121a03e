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
		"dns: Servers: address 2 of 2 is not valid":                                func() { Servers(valid, netip.AddrPort{}) },
		"dns: Search: ndots: -1 must not be negative":                              func() { Search(-1) },
		`dns: Search: domain "a..b": the name has an empty label`:                  func() { Search(1, "a", "a..b") },
		"dns: Timeout: -1s must not be negative":                                   func() { Timeout(-time.Second) },
		"dns: Attempts: -1 must not be negative":                                   func() { Attempts(-1) },
		"dns: Attempts: 101 is more than 100":                                      func() { Attempts(101) },
		"dns: Refresh: least: -1ns must not be negative":                           func() { Refresh(-1, 0) },
		"dns: Refresh: most: -1ns must not be negative":                            func() { Refresh(0, -1) },
		"dns: Refresh: most 1s is below least 2s: want more, or 0 for the default": func() { Refresh(2*time.Second, time.Second) },
		"dns: backoff: max 1s must be at least min 2s":                             func() { Backoff(resolve.Backoff{Min: 2e9, Max: 1e9}) },
		"dns: backoff: jitter NaN must be from 0 to 100":                           func() { Backoff(resolve.Backoff{Jitter: math.NaN()}) },
		"dns: Measured: the counter is nil":                                        func() { Measured(nil) },
	} {
		assert.PanicsWithValue(t, want, set)
	}
}

// badCounter panics when it is used.
type badCounter struct{}

func (c badCounter) With(...string) metrics.Counter { return c }
func (badCounter) Add(float64)                      { panic("no such label") }

func TestCounterThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(Measured(badCounter{}), IPv4Only())
		s.put("web", "web.test. 60 A 10.0.0.1")
		_, err := first(t.Context(), r, "web.test:80")
		require.Regexp(t, `^dns: look up: panic at nil_test\.go:\d+: no such label$`, err.Error())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		require.Len(t, watch(ctx, r, "web.test:80").take(), 1)
	})
}
