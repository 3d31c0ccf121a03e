package layer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// fleet is a set of servers in virtual time, with a balancer that sends each request to the
// server with fewer requests of two random ones. Like most servers, they finish requests that
// their caller has abandoned, unless cancels is true.
type fleet struct {
	workers int           // of each server
	service time.Duration // the mean time of a worker for one request
	cancels bool
	slow    func(at time.Duration) float64           // multiplies the time; nil for 1
	fails   func(server int, at time.Duration) bool  // nil for never
	tail    func(r *rand.Rand) (extra time.Duration) // time that a request waits without a worker; nil for none
	cost    func(req int) float64                    // multiplies the time; nil for 1
	spread  float64                                  // sigma of the lognormal time

	mu      sync.Mutex
	random  *rand.Rand
	began   time.Time
	servers []*fleetServer
	sent    int // attempts that reached a server
}

// fleetServer serves requests in the order of their arrival.
type fleetServer struct {
	number   int
	free     []time.Time // when each worker is free, if no request is abandoned
	inFlight int
	worker   chan struct{} // of a server that cancels
}

var errFleet = errors.New("server failed")

// start must be called in the bubble of the test.
func (f *fleet) start(n int, seed uint64) {
	f.random, f.began, f.servers, f.sent = rand.New(rand.NewPCG(seed, 1)), time.Now(), nil, 0
	for i := range n {
		s := &fleetServer{number: i, free: make([]time.Time, f.workers), worker: make(chan struct{}, f.workers)}
		f.servers = append(f.servers, s)
	}
}

// capacity returns the number of requests a second that n servers can serve.
func (f *fleet) capacity(n int) float64 {
	return float64(n*f.workers) / f.service.Seconds()
}

func (f *fleet) now() time.Duration { return time.Since(f.began) }

func (f *fleet) pick(tried *layer.Attempts) *fleetServer {
	var best *fleetServer
	for range 2 {
		s := f.servers[f.random.IntN(len(f.servers))]
		for range 10 {
			if !tried.Has(s) {
				break
			}
			s = f.servers[f.random.IntN(len(f.servers))]
		}
		if best == nil || s.inFlight < best.inFlight {
			best = s
		}
	}
	tried.Add(best)
	return best
}

func (f *fleet) Ready(context.Context) error { return nil }

func (f *fleet) Call(ctx context.Context, req int) (int, error) {
	f.mu.Lock()
	s := f.pick(layer.AttemptsFromContext(ctx))
	f.mu.Unlock()
	return f.serve(ctx, s, req)
}

func (f *fleet) serve(ctx context.Context, s *fleetServer, req int) (int, error) {
	f.mu.Lock()
	f.sent++
	s.inFlight++
	takes := f.takes(req)
	extra := time.Duration(0)
	if f.tail != nil {
		extra = f.tail(f.random)
	}
	failed := f.fails != nil && f.fails(s.number, f.now())
	end := time.Now()
	if !f.cancels && !failed {
		first := 0
		for i := range s.free {
			if s.free[i].Before(s.free[first]) {
				first = i
			}
		}
		if s.free[first].After(end) {
			end = s.free[first]
		}
		end = end.Add(takes)
		s.free[first] = end
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		s.inFlight--
		f.mu.Unlock()
	}()
	if failed {
		time.Sleep(time.Millisecond)
		return 0, errFleet
	}
	if f.cancels {
		select {
		case s.worker <- struct{}{}:
			defer func() { <-s.worker }()
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		end = time.Now().Add(takes)
	}
	timer := time.NewTimer(time.Until(end) + extra)
	defer timer.Stop()
	select {
	case <-timer.C:
		return req, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (f *fleet) takes(req int) time.Duration {
	takes := float64(f.service) * math.Exp(f.spread*f.random.NormFloat64()-f.spread*f.spread/2)
	if f.slow != nil {
		takes *= f.slow(f.now())
	}
	if f.cost != nil {
		takes *= f.cost(req)
	}
	return time.Duration(takes)
}

// fleetCall is the result of one request.
type fleetCall struct {
	at   time.Duration
	took time.Duration
	err  error
}

// offer sends Poisson arrivals at a rate for a time, and returns their results.
func (f *fleet) offer(svc layer.Service[int, int], perSecond float64, length time.Duration, seed uint64) []fleetCall {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		calls []fleetCall
	)
	random := rand.New(rand.NewPCG(seed, 2))
	for f.now() < length {
		time.Sleep(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second)))
		at := f.now()
		req := random.IntN(1_000_000)
		all.Go(func() {
			_, err := svc.Call(context.Background(), req)
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fleetCall{at, f.now() - at, err})
		})
	}
	all.Wait()
	return calls
}

// good returns the share of the calls that began between two times and succeeded.
func good(calls []fleetCall, from, to time.Duration) float64 {
	n, ok := 0, 0
	for _, c := range calls {
		if c.at < from || c.at >= to {
			continue
		}
		n++
		if c.err == nil {
			ok++
		}
	}
	return float64(ok) / float64(n)
}

// retryHedge is the stack that the documentation of Hedge describes: a Retry and a Hedge with the
// same budget.
func retryHedge(below layer.Service[int, int]) layer.Service[int, int] {
	budget := layer.NewBudget(0, 0, 0)
	return layer.NewStack[int](layer.WithClassifier(failuresAgain[int])).
		Timeout(time.Second).
		Retry(layer.RetryPolicy[int, int]{Budget: budget, AttemptTimeout: 250 * time.Millisecond}).
		Hedge(layer.HedgePolicy[int]{Budget: budget}).
		Service(below)
}

// At a steady load without any trouble, copies do not overload the service.
func TestOverloadRetryHedge(t *testing.T) {
	for _, row := range []struct {
		servers int
		load    float64
	}{{4, 0.75}, {10, 0.85}, {10, 0.9}} {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%d servers at %v, seed %d", row.servers, row.load, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &fleet{workers: 2, service: 20 * time.Millisecond, spread: 0.5}
					f.start(row.servers, seed)
					calls := f.offer(retryHedge(f), row.load*f.capacity(row.servers), time.Minute, seed)
					assert.InDelta(t, 1, good(calls, 0, time.Minute), 0)
					assert.Less(t, float64(f.sent)/float64(len(calls)), 1.06, "attempts per request")
				})
			})
		}
	}
}

// All servers are twice as slow from 10 s to 20 s. At a load of 40 % they can serve all requests
// all the time.
func TestOverloadRetryHedgeSlow(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("cancels %v, seed %d", cancels, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &fleet{workers: 2, service: 20 * time.Millisecond, spread: 0.5, cancels: cancels}
					f.slow = func(at time.Duration) float64 {
						if at >= 10*time.Second && at < 20*time.Second {
							return 2
						}
						return 1
					}
					f.start(10, seed)
					calls := f.offer(retryHedge(f), 0.4*f.capacity(10), 40*time.Second, seed)
					assert.GreaterOrEqual(t, good(calls, 0, 40*time.Second), 0.99)
					assert.InDelta(t, 1, good(calls, 22*time.Second, 40*time.Second), 0)
				})
			})
		}
	}
}

// A request in fifty waits for 200 ms, whatever the load. Copies avoid nearly all of these waits.
func TestOverloadHedgeTails(t *testing.T) {
	p99 := func(t *testing.T, stack func(*fleet) layer.Service[int, int]) (p99 time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			f := &fleet{workers: 16, service: 5 * time.Millisecond, spread: 0.5}
			f.tail = func(r *rand.Rand) time.Duration {
				if r.Float64() < 0.02 {
					return 200 * time.Millisecond
				}
				return 0
			}
			f.start(10, 1)
			calls := f.offer(stack(f), 1000, 30*time.Second, 1)
			slices.SortFunc(calls, func(a, b fleetCall) int { return cmp.Compare(a.took, b.took) })
			p99 = calls[len(calls)*99/100].took
		})
		return p99
	}
	assert.Greater(t, p99(t, func(f *fleet) layer.Service[int, int] { return f }), 190*time.Millisecond)
	assert.Less(t, p99(t, func(f *fleet) layer.Service[int, int] { return retryHedge(f) }), 65*time.Millisecond)
}

// A copy is not copied: of nested layers, those below send a retry or a hedge once.
func TestCopyIsSentOnce(t *testing.T) {
	for name, row := range map[string]struct {
		stack func(layer.Stack[int, int]) layer.Stack[int, int]
		fails bool
		sent  int64
	}{
		"hedge over hedge": {func(s layer.Stack[int, int]) layer.Stack[int, int] {
			return s.Hedge(after[int](10 * time.Millisecond)).Hedge(after[int](20 * time.Millisecond))
		}, false, 3},
		"hedge over retry": {func(s layer.Stack[int, int]) layer.Stack[int, int] {
			return s.Hedge(after[int](10 * time.Millisecond)).Retry(layer.RetryPolicy[int, int]{MaxAttempts: 4})
		}, true, 5},
		"retry over hedge": {func(s layer.Stack[int, int]) layer.Stack[int, int] {
			return s.Retry(layer.RetryPolicy[int, int]{MaxAttempts: 4}).Hedge(after[int](10 * time.Millisecond))
		}, true, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				answer := answers(1, 100*time.Millisecond)
				if row.fails {
					answer = fails(errFleet, 100*time.Millisecond)
				}
				svc := row.stack(layer.NewStack[int](layer.WithClassifier(failuresAgain[int]))).Service(
					layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
						sent.Add(1)
						return answer(ctx)
					}))
				_, err := svc.Call(t.Context(), 1)
				assert.Equal(t, row.fails, err != nil)
				assert.Equal(t, row.sent, sent.Load())
			})
		})
	}
}

// Callers give up after a second, and a queue of three seconds is above a limit. What the service
// serves is of use nevertheless, because the queue does not serve those who are about to give up.
func TestOverloadQueue(t *testing.T) {
	for _, load := range []float64{0.9, 2, 10} {
		for _, cancels := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v times, cancels %v", load, cancels), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &fleet{workers: 10, service: 100 * time.Millisecond, spread: 0.5, cancels: cancels}
					f.start(1, 1)
					svc := layer.NewStack[int, int]().Timeout(time.Second).Queue(1000, 3*time.Second).Limit(10).Service(f)
					calls := f.offer(svc, load*f.capacity(1), 30*time.Second, 1)
					served := good(calls, 0, 30*time.Second) * load / min(load, 1)
					assert.Greater(t, served, 0.95)
				})
			})
		}
	}
}

// overloadStack is a stack of random layers in the documented order, from the outermost to the
// innermost, with a random fleet, a random balancer and a random trigger. The trigger is over after
// triggerEnd.
type overloadStack struct {
	random  *rand.Rand
	servers int
	load    float64
	trigger string
	stack   layer.Stack[int, int]
	names   []string
	attempt time.Duration         // the shortest limit of an attempt; 0 for none
	plain   layer.Stack[int, int] // the time limit alone
	balance *balance.Policy       // nil for two random choices
	breaker *layer.BreakerPolicy  // of each server below the balancer; nil for none
	log     strings.Builder       // what the layers log when they are made
}

const (
	triggerBegin    = 5 * time.Second
	triggerEnd      = 10 * time.Second
	overloadEnd     = 45 * time.Second
	overloadService = 20 * time.Millisecond
)

func newOverloadStack(seed uint64) *overloadStack {
	random := rand.New(rand.NewPCG(seed, 3))
	s := &overloadStack{
		random:  random,
		servers: 4 + random.IntN(5),
		load:    0.6 + 0.3*random.Float64(),
		trigger: []string{"slower", "failing", "fewer servers"}[random.IntN(3)],
	}
	limit := time.Duration(300+random.IntN(1200)) * time.Millisecond
	s.plain = s.newStack().Timeout(limit)
	s.stack = s.plain
	s.notef("Timeout(%v)", limit)
	budget := layer.NewBudget(0, 0, 0)
	for tier := range 1 + random.IntN(2) {
		if tier > 0 {
			s.notef("second tier")
			budget = layer.NewBudget(0, 0, 0)
		}
		s.grow(budget)
	}
	s.choose(rand.New(rand.NewPCG(seed, 4)))
	return s
}

// newStack returns an empty stack whose layers log to s.
func (s *overloadStack) newStack() layer.Stack[int, int] {
	return layer.NewStack[int](layer.WithClassifier(failuresAgain[int]), layer.WithLogger[int](slog.New(slog.NewTextHandler(&s.log, nil))))
}

// choose chooses the balancer. It has a random source of its own, because half of the seeds have
// none, and find what the layers do without it.
func (s *overloadStack) choose(random *rand.Rand) {
	if random.IntN(2) == 0 {
		return
	}
	s.balance = new(balance.Policy)
	s.balance.Picker = []balance.Picker{{}, balance.RoundRobin(), balance.Random()}[random.IntN(3)]
	detection := &s.balance.OutlierDetection
	if s.load >= 0.8 {
		detection.MinReady = min(s.load+0.1, 1) // as its documentation says
	}
	if random.IntN(4) > 0 {
		detection.ConsecutiveFailures, detection.Interval = 5, 10*time.Second
	}
	if random.IntN(3) == 0 {
		s.breaker = &layer.BreakerPolicy{MinSuccessRate: 0.8 * float64(random.IntN(2))}
	}
	s.notef("balancer (%v, outlier detection %v)", s.balance.Picker, detection.ConsecutiveFailures > 0)
	if s.breaker != nil {
		s.notef("breakers (%v)", s.breaker.MinSuccessRate)
	}
}

// below returns the service below the layers. Its balancer ends with ctx.
func (s *overloadStack) below(ctx context.Context, f *fleet, seed uint64) layer.Service[int, int] {
	if s.balance == nil {
		return f
	}
	var servers discover.Change[int, int]
	servers.State = resolve.StateExists
	for i, server := range f.servers {
		stack := s.newStack()
		if s.breaker != nil {
			stack = stack.Breaker(*s.breaker)
		}
		servers.Added = append(servers.Added, &discover.Endpoint[int, int]{
			Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)}},
			Service: stack.Service(layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
				return f.serve(ctx, server, req)
			})),
		})
	}
	changes := func(yield func(discover.Change[int, int]) bool) {
		if yield(servers) {
			<-ctx.Done()
		}
	}
	var mu sync.Mutex
	source := rand.NewPCG(seed, 5)
	b := balance.New(ctx, balance.Config{Target: "fleet", Policy: *s.balance, Rand: func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint64()
	}}, changes, balance.WithClassifier(failuresAgain[int]))
	synctest.Wait()
	return b
}

func (s *overloadStack) notef(format string, args ...any) {
	s.names = append(s.names, fmt.Sprintf(format, args...))
}

func (s *overloadStack) sometimes() bool { return s.random.IntN(2) == 0 }

func (s *overloadStack) String() string {
	return fmt.Sprintf("%d servers at %.2f, %s: %s", s.servers, s.load, s.trigger, strings.Join(s.names, ", "))
}

// grow adds the layers of one tier. Limits have room for four times the requests that are in
// flight at full load.
func (s *overloadStack) grow(budget *layer.Budget) {
	if s.sometimes() {
		wait := time.Duration(100+s.random.IntN(2000)) * time.Millisecond
		s.stack = s.stack.Queue(1000, wait).Limit(8 * s.servers)
		s.notef("Queue(1000, %v), Limit(%d)", wait, 8*s.servers)
	}
	if s.sometimes() {
		retry := layer.RetryPolicy[int, int]{Budget: budget, MaxAttempts: 2 + s.random.IntN(4)}
		if s.sometimes() {
			retry.AttemptTimeout = time.Duration(100+s.random.IntN(300)) * time.Millisecond
			s.attempt = min(cmp.Or(s.attempt, retry.AttemptTimeout), retry.AttemptTimeout)
		}
		s.stack = s.stack.Retry(retry)
		s.notef("Retry(%d, %v)", retry.MaxAttempts, retry.AttemptTimeout)
	}
	if s.sometimes() {
		hedge := layer.HedgePolicy[int]{Budget: budget}
		if s.sometimes() {
			hedge.MinDelay = 30 * time.Millisecond
			hedge.MaxDelay = hedge.MinDelay
		}
		s.stack = s.stack.Hedge(hedge)
		s.notef("Hedge(%v)", hedge.MaxDelay)
	}
	switch s.random.IntN(6) {
	case 0:
		s.stack = s.stack.AdaptiveLimit(layer.AdaptivePolicy{})
		s.notef("AdaptiveLimit")
	case 1:
		s.stack = s.stack.Limit(8 * s.servers)
		s.notef("Limit(%d)", 8*s.servers)
	case 2:
		s.stack = s.stack.Breaker(layer.BreakerPolicy{Backoff: layer.Backoff{Min: time.Second, Max: 2 * time.Second}})
		s.notef("Breaker")
	}
}

// start starts the servers, and returns a stack above them. The balancer ends with ctx.
func (s *overloadStack) start(ctx context.Context, f *fleet, seed uint64, stack layer.Stack[int, int]) layer.Service[int, int] {
	f.start(s.servers, seed)
	return stack.Service(s.below(ctx, f, seed))
}

// warning returns what the layers of the stack log when it is made.
func (s *overloadStack) warning(t *testing.T, seed uint64) string {
	synctest.Test(t, func(t *testing.T) { s.start(t.Context(), &fleet{workers: 2}, seed, s.stack) })
	return s.log.String()
}

// offer offers requests to a stack, during which the trigger happens.
func (s *overloadStack) offer(t *testing.T, seed uint64, stack layer.Stack[int, int]) (calls []fleetCall) {
	synctest.Test(t, func(t *testing.T) {
		during := func(at time.Duration) bool { return at >= triggerBegin && at < triggerEnd }
		f := &fleet{workers: 2, service: overloadService, spread: 0.5}
		switch s.trigger {
		case "slower":
			f.slow = func(at time.Duration) float64 {
				if during(at) {
					return 2
				}
				return 1
			}
		case "failing":
			f.fails = func(_ int, at time.Duration) bool { return during(at) && f.random.IntN(2) == 0 }
		default:
			f.fails = func(server int, at time.Duration) bool { return during(at) && server < s.servers/2 }
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls = f.offer(s.start(ctx, f, seed, stack), s.load*f.capacity(s.servers), overloadEnd, seed)
	})
	return calls
}

// recovery returns the end of the last second after the trigger in which less than 99 % of the
// requests were good: servers that finish abandoned requests need a time for what has piled up.
func recovery(calls []fleetCall) time.Duration {
	for at := overloadEnd - time.Second; at >= triggerEnd; at -= time.Second {
		if good(calls, at, at+time.Second) < 0.99 {
			return at + time.Second
		}
	}
	return triggerEnd
}

// isWarned reports whether the stack is one that the layers warn about when they are made. Below a pick
// that ignores costs, the queues of the servers are uneven. At a high load, breakers with a success rate
// then take out the servers with the longest queues, and short limits of attempts are missed, also before
// the trigger.
func (s *overloadStack) isWarned() bool {
	if s.balance == nil {
		return false
	}
	picker := s.balance.Picker.String()
	uneven := s.breaker != nil && s.breaker.MinSuccessRate > 0 && picker != balance.Picker{}.String()
	short := s.attempt > 0 && s.attempt < 15*overloadService && s.load > 0.8 && picker == balance.Random().String()
	return uneven || short
}

// No combination of layers keeps a service overloaded after the trigger of the overload is over:
// five seconds after a stack with the time limit alone has recovered, goodput is the same. With
// GOTOWER_TESTS=full the test tries 300 stacks.
//
// Of the seeds after the first twenty, 55 and 131 did not recover while retries waited for the probe of a
// breaker, 556 while missed deadlines made the balancer doubt the servers with the longest queues, and
// 26 while ejected servers were not probed. 281 has short limits of attempts, about which Retry warns.
func TestOverloadRandomStacks(t *testing.T) {
	seeds := []uint64{26, 55, 131, 281, 556}
	first := uint64(20)
	if os.Getenv("GOTOWER_TESTS") == "full" {
		first, seeds = 300, nil
	}
	for seed := range first {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newOverloadStack(seed)
			if s.isWarned() {
				assert.Contains(t, s.warning(t, seed), "level=WARN", s)
				return
			}
			plain := &overloadStack{servers: s.servers, load: s.load, trigger: s.trigger}
			if s.balance != nil {
				plain.balance = &balance.Policy{Picker: s.balance.Picker}
			}
			calls := plain.offer(t, seed, s.plain)
			from := recovery(calls) + 5*time.Second
			if from >= overloadEnd-5*time.Second {
				t.Skip("even the time limit alone does not recover in time")
			}
			got := good(s.offer(t, seed, s.stack), from, overloadEnd)
			assert.GreaterOrEqual(t, got, 0.99*good(calls, from, overloadEnd), "from %v: %v", from, s)
		})
	}
}
