package dns

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"golang.org/x/net/dns/dnsmessage"
)

// tallies are counters by their labels, as "SRV ok".
type tallies struct {
	mu sync.Mutex
	n  map[string]int
}

type tallied struct {
	of   *tallies
	name string
}

func (t tallied) With(labels ...string) metrics.Counter {
	return tallied{t.of, strings.TrimSpace(t.name + fmt.Sprint(" ", labels[1], " ", labels[3]))}
}

func (t tallied) Add(delta float64) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.n[t.name] += int(delta)
}

func (t *tallies) take() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.n
	t.n = map[string]int{}
	return n
}

func TestWithMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := &tallies{n: map[string]int{}}
		r, s := bubble(WithMetrics(tallied{of: counts}), WithRefresh(time.Minute, time.Minute))
		s.put("zone", "web.test. 60 A 10.0.0.1", "web.test. 60 AAAA fd00::1", "_http._tcp.web.test. 60 SRV 0 5 80 web.test.")
		s.put("soa", "test. 60 SOA 60")
		for target, want := range map[string]map[string]int{
			"web.test.:80":               {"A/AAAA ok": 1},
			"none.test.:80":              {"A/AAAA not_found": 1},
			"_http._tcp.web.test.":       {"SRV ok": 1},
			"_grpc._tcp.web.test.":       {"SRV not_found": 1},
			"_grpc._tcp.web.test.:80":    {"SRV not_found": 1, "A/AAAA ok": 1},
			"10.0.0.1:80":                {},
			"web.test.:nobody-knows-how": {},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			watch(ctx, r, target)
			assert.Equal(t, want, counts.take(), target)
			cancel()
			synctest.Wait()
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch(ctx, r, "web.test.:80")
		watch(ctx, r, "web.test.:80") // shares the lookup
		assert.Equal(t, map[string]int{"A/AAAA ok": 1}, counts.take())
		time.Sleep(70 * time.Second)
		synctest.Wait()
		assert.Equal(t, map[string]int{"A/AAAA ok": 1}, counts.take(), "once a minute")
		s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
		time.Sleep(65 * time.Second) // three minutes, and what chance adds to each
		synctest.Wait()
		failed := counts.take()
		assert.NotZero(t, failed["A/AAAA not_found"])
		assert.Len(t, failed, 1)
	})
}

// A canceled lookup is not counted.
func TestWithMetricsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := &tallies{n: map[string]int{}}
		r, s := bubble(WithMetrics(tallied{of: counts}))
		s.fail(always(reply{silent: true}))
		ctx, cancel := context.WithCancel(t.Context())
		watch(ctx, r, "web.test.:80")
		cancel()
		synctest.Wait()
		assert.Empty(t, counts.take())
	})
}
