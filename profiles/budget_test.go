package profiles_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// The example of spec/profiles.md: ratio 0.2, min 10/s, ttl 10 s allow 100
// retries in 10 s, and one more for every five requests.
func TestBudgetExample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startStorm(t, profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second})
		defer s.stop()
		for range 50 {
			s.send("/a")
		}
		assert.Equal(t, 100+50/5, s.retries())
		// The window is ttl long. Deposits expire after it.
		time.Sleep(11 * time.Second)
		s.send("/a")
		assert.Equal(t, 110+99, s.retries(), "a hundred are there again, and one request is sent 100 times at the most")
	})
}

func TestBudgetSharedByRoutes(t *testing.T) {
	p := retryable()
	p.Routes = append(p.Routes, p.Routes[0])
	p.Routes[0].Match, p.Routes[1].Match = profiles.Path("/a"), profiles.Path("/b")
	r, bs := serving(t, p, status(503))
	assert.EqualValues(t, 11, tries(t, r, bs, request{method: "GET", path: "/a"}))
	assert.EqualValues(t, 1, tries(t, r, bs, request{method: "GET", path: "/b"}))
}

func TestBudgetKeptAcrossProfiles(t *testing.T) {
	src := newScript()
	bs := &backends{prepare: func(b *backend) { b.serve = status(503) }}
	asked := map[string]int{}
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Metrics: func(route profiles.Route) (requests, tries layer.Instruments) {
		asked[route.Name]++
		return layer.Instruments{}, layer.Instruments{}
	}}, access{}, bs.mk, standard())
	src.send(retryable(), nil)
	assert.EqualValues(t, 11, tries(t, r, bs, get))

	more := retryable()
	more.Routes = append([]profiles.Route{{Name: "new", Match: profiles.Path("/new"), Retry: &profiles.Retry{}}}, more.Routes...)
	src.send(more, nil)
	assert.EqualValues(t, 1, tries(t, r, bs, get), "the same budget keeps its balance")
	assert.EqualValues(t, 1, tries(t, r, bs, request{method: "GET", path: "/new"}), "for a new route too")

	other := retryable()
	other.RetryBudget.MinPerSecond = 2
	src.send(other, nil)
	assert.EqualValues(t, 21, tries(t, r, bs, get), "another budget has a new balance, for unchanged routes too")

	none := retryable()
	none.RetryBudget = nil
	src.send(none, nil)
	assert.EqualValues(t, 1, tries(t, r, bs, get))
	assert.Equal(t, map[string]int{"r": 3, "new": 1}, asked, "instruments stay until the budget changes")
}

func TestLimitKeptAcrossProfiles(t *testing.T) {
	src := newScript()
	bs := &backends{}
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, standard())
	limited := func() *profiles.Profile {
		return retryable(func(r *profiles.Route) { r.Rate = profiles.Rate{PerSecond: 0.001} })
	}
	src.send(limited(), nil)
	assert.EqualValues(t, 1, tries(t, r, bs, get))
	more := limited()
	more.Routes = append(more.Routes, profiles.Route{Name: "new", Match: profiles.Path("/new")})
	src.send(more, nil)
	assert.EqualValues(t, 0, tries(t, r, bs, get), "the route is the same, and so is its rate")
}

// retryStorm is a router over a failing backend, with the times of its requests. It
// runs in a bubble.
type retryStorm struct {
	*router
	source *profiles.Static
	budget profiles.RetryBudget
	stop   func()

	mu    sync.Mutex
	came  map[string]bool // requests, by path
	first []time.Time     // tries that were the first of their request
	again []time.Time     // all others
	next  int
}

func startStorm(t *testing.T, b profiles.RetryBudget) *retryStorm {
	ctx, cancel := context.WithCancel(t.Context())
	s := &retryStorm{budget: b, came: map[string]bool{}, source: &profiles.Static{}, stop: cancel}
	s.set()
	config := profiles.Config{Target: target, Source: s.source, InitialWait: time.Second}
	s.router = profiles.New(ctx, config, access{}, func(string) service {
		return handler(func(_ context.Context, req request) (*reply, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.came[req.path] {
				s.again = append(s.again, time.Now())
			} else {
				s.first = append(s.first, time.Now())
			}
			s.came[req.path] = true
			return &reply{status: 503}, nil
		})
	}, standard())
	return s
}

// set makes a profile with the same budget current, with routes that are new
// where labels says so.
func (s *retryStorm) set(labels ...string) {
	var routes []profiles.Route
	for _, prefix := range []string{"/a", "/b"} {
		r := profiles.Route{Match: profiles.Path(prefix + ".*"), Retry: &profiles.Retry{NonIdempotent: true}}
		if len(labels) > 0 && prefix == "/b" {
			r.Labels = map[string]string{"v": labels[0]}
		}
		routes = append(routes, r)
	}
	b := s.budget
	s.source.Set(target, &profiles.Profile{Routes: routes, RetryBudget: &b})
}

// send sends a request of its own to the route.
func (s *retryStorm) send(route string) error {
	s.mu.Lock()
	s.next++
	path := fmt.Sprintf("%s/%d", route, s.next)
	s.mu.Unlock()
	_, err := s.Call(context.Background(), request{method: "POST", path: path})
	return err
}

func (s *retryStorm) retries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.again)
}

// check holds every window of ttl that ends with a retry to the budget.
func (s *retryStorm) check(t require.TestingT) {
	s.mu.Lock()
	defer s.mu.Unlock()
	within := func(times []time.Time, end time.Time) int {
		n := 0
		for _, at := range times {
			if !at.After(end) && at.After(end.Add(-s.budget.TTL)) {
				n++
			}
		}
		return n
	}
	for _, end := range s.again {
		retries, requests := within(s.again, end), within(s.first, end)
		allowed := s.budget.Ratio*float64(requests) + float64(s.budget.MinPerSecond)*s.budget.TTL.Seconds()
		require.LessOrEqual(t, float64(retries), allowed, "retries in %v up to %v, of %d requests", s.budget.TTL, end, requests)
	}
}

// A failing backend never gets more retries than the budget allows in any window of its
// ttl, regardless of the requests and of new profiles.
func TestRetryStorm(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := profiles.RetryBudget{
			Ratio:        rapid.SampledFrom([]float64{0, 0.1, 0.2, 0.5, 1, 3}).Draw(rt, "ratio"),
			MinPerSecond: rapid.Uint32Range(0, 3).Draw(rt, "min"),
			TTL:          time.Duration(rapid.Int64Range(int64(time.Second), int64(5*time.Second)).Draw(rt, "ttl")),
		}
		steps := rapid.SliceOfN(rapid.IntRange(0, 5), 5, 30).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			s := startStorm(t, b)
			defer s.stop()
			var group sync.WaitGroup
			for i, step := range steps {
				switch step {
				case 0:
					time.Sleep(time.Duration(i%7) * b.TTL / 5)
				case 1:
					s.set(fmt.Sprint(i))
				default:
					for range step * 2 {
						route := [2]string{"/a", "/b"}[i%2]
						group.Go(func() { assert.NoError(t, s.send(route)) })
					}
					time.Sleep(time.Millisecond)
				}
			}
			group.Wait()
			s.check(t)
		})
	})
}

// A profile that changes every 100 ms under load causes no error, and its
// budget stays the same.
func TestBudgetOfChangingProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startStorm(t, profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 5, TTL: 2 * time.Second})
		var group sync.WaitGroup
		for i := range 4 {
			group.Go(func() {
				for range 500 {
					assert.NoError(t, s.send([2]string{"/a", "/b"}[i%2]))
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		group.Go(func() {
			for i := range 100 {
				time.Sleep(100 * time.Millisecond)
				s.set(fmt.Sprint(i))
			}
		})
		group.Wait()
		s.stop()
		s.check(t)
		// 10 s: 2000 requests allow 400 retries, and the minimum allows 50. Unused
		// deposits expire at the end of the ttl, which are few.
		assert.Greater(t, s.retries(), 400, "and it is spent")
	})
}

// A budget that is removed and returns keeps its balance.
func TestBudgetChanges(t *testing.T) {
	steady := func() *profiles.Profile { return retryable() }
	for name, tt := range map[string]struct {
		turns []*profiles.Profile
		most  int64
	}{
		"steady":        {[]*profiles.Profile{steady()}, 11},
		"gone and back": {[]*profiles.Profile{steady(), {}}, 11},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := newScript()
				bs := &backends{prepare: func(b *backend) { b.serve = status(503) }}
				r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, standard())
				const requests = 50 // in 5 s of the 10 that the budget looks back
				for i := range requests {
					src.send(tt.turns[i%len(tt.turns)], nil)
					_, _ = r.Call(t.Context(), get)
					time.Sleep(100 * time.Millisecond)
				}
				require.LessOrEqual(t, bs.calls()[target]-requests, tt.most)
				require.Greater(t, bs.calls()[target]-requests, int64(5))
			})
		})
	}
}
