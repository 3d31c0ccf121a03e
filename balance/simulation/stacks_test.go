package simulation

import (
	"context"
	"fmt"
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

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// stackScenario is a service and a load. Stacks of layers call the service through the real balancer.
type stackScenario struct {
	name, what string

	servers, workers int           // workers of each server
	service          time.Duration // the mean time of a worker for one request
	spread           float64       // sigma of the lognormal time
	load             float64       // of the capacity
	length, from     time.Duration // figures are of requests from here on
	cancels          bool          // whether servers stop when the caller has left, unlike most servers
	slow             func(at time.Duration) float64
	share, times     float64       // this share of the requests costs so many times as much
	tail, delay      float64       // this share of the attempts waits for so many ms, without a worker
	wire             time.Duration // in both directions together

	stacks []stackContender
	claims []claim // about the first of stacks
}

type stackContender struct {
	name, rule string
	build      func(st callStack) callStack
}

type callStack = layer.Stack[*job, *job]

// job is one request of a caller. Its work depends only on the seed, its number and the attempt.
type job struct {
	at, took time.Duration
	err      error
	seed     [2]uint64
	attempts atomic.Uint64
	draw     float64 // 0 to 1: expensive requests
}

// stackServer serves requests in the order of their arrival.
type stackServer struct {
	*stackScenario
	began  time.Time
	mu     sync.Mutex
	free   []time.Time   // when each worker is free, if servers finish abandoned requests
	worker chan struct{} // if they do not
}

func (*stackServer) Ready(context.Context) error { return nil }

func (s *stackServer) Call(ctx context.Context, j *job) (*job, error) {
	random := rand.New(rand.NewPCG(j.seed[0], j.seed[1]<<8|j.attempts.Add(1)))
	takes := float64(s.service) * math.Exp(s.spread*random.NormFloat64()-s.spread*s.spread/2)
	if s.slow != nil {
		takes *= s.slow(time.Since(s.began))
	}
	if j.draw < s.share {
		takes *= s.times
	}
	extra := s.wire
	if random.Float64() < s.tail {
		extra += time.Duration(s.delay * float64(ms))
	}
	end := time.Now()
	if s.cancels {
		select {
		case s.worker <- struct{}{}:
			defer func() { <-s.worker }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		end = time.Now().Add(time.Duration(takes))
	} else {
		s.mu.Lock()
		first := 0
		for i, t := range s.free {
			if t.Before(s.free[first]) {
				first = i
			}
		}
		if s.free[first].After(end) {
			end = s.free[first]
		}
		end = end.Add(time.Duration(takes))
		s.free[first] = end
		s.mu.Unlock()
	}
	timer := time.NewTimer(time.Until(end) + extra)
	defer timer.Stop()
	select {
	case <-timer.C:
		return j, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// capacity returns the number of requests a second that all servers can serve.
func (sc *stackScenario) capacity() float64 {
	return float64(sc.servers*sc.workers) / sc.service.Seconds() / (1 + sc.share*(sc.times-1))
}

func classifyJob(o layer.Outcome[*job]) layer.Class {
	if o.Err != nil {
		return layer.Retryable
	}
	return layer.Success
}

// run sends Poisson arrivals through a stack.
func (sc *stackScenario) run(t *testing.T, c stackContender, seed uint64) (res result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		set := discover.Change[*job, *job]{State: resolve.StateExists}
		for i := range sc.servers {
			set.Added = append(set.Added, &discover.Endpoint[*job, *job]{
				Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)}},
				Service: &stackServer{
					stackScenario: sc, began: began, free: make([]time.Time, sc.workers), worker: make(chan struct{}, sc.workers),
				},
			})
		}
		var mu sync.Mutex
		picks := source(seed)
		b := balance.New(ctx, balance.Config{Target: "simulated", Rand: func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return picks.Uint64()
		}}, func(yield func(discover.Change[*job, *job]) bool) {
			if yield(set) {
				<-ctx.Done()
			}
		}, balance.WithClassifier(classifyJob))
		synctest.Wait()
		svc := c.build(layer.NewStack[*job](layer.WithClassifier(classifyJob))).Service(b)
		random := rand.New(rand.NewPCG(seed, 10))
		var jobs []*job
		var all sync.WaitGroup
		for time.Since(began) < sc.length {
			time.Sleep(time.Duration(random.ExpFloat64() / (sc.load * sc.capacity()) * float64(sec)))
			j := &job{at: time.Since(began), seed: [2]uint64{seed, uint64(len(jobs))}, draw: random.Float64()}
			jobs = append(jobs, j)
			all.Go(func() {
				_, j.err = svc.Call(context.Background(), j)
				j.took = time.Since(began) - j.at
			})
		}
		all.Wait()
		res = sc.measure(jobs)
	})
	return res
}

// measure returns the figures of the requests. A failure counts as callerPatience at least.
func (sc *stackScenario) measure(jobs []*job) (res result) {
	var waits []time.Duration
	var good, attempts float64
	for _, j := range jobs {
		if j.at < sc.from {
			continue
		}
		attempts += float64(j.attempts.Load())
		if j.err == nil {
			good++
		} else {
			j.took = max(j.took, callerPatience)
		}
		waits = append(waits, j.took)
	}
	slices.Sort(waits)
	n := float64(len(waits))
	res.P50 = float64(waits[len(waits)/2]) / float64(ms)
	res.P99 = float64(waits[len(waits)*99/100]) / float64(ms)
	served := n * min(1, 1/sc.load)
	res.Good = min(100*good/served, 100)
	res.Extra = []figure{{"attempts", attempts / n, "per request"}}
	if sc.slow != nil {
		res.Extra = append(res.Extra, figure{"recovered after", recovered(jobs, slowEnd).Seconds(), "s"})
	}
	return res
}

// recovered returns the time from a trouble's end to the end of the last second with less than 99 %
// of successes.
func recovered(jobs []*job, end time.Duration) time.Duration {
	var last time.Duration
	for at := end; at < jobs[len(jobs)-1].at; at += sec {
		n, good := 0, 0
		for _, j := range jobs {
			if j.at >= at && j.at < at+sec {
				n++
				if j.err == nil {
					good++
				}
			}
		}
		if float64(good) < 0.99*float64(n) {
			last = at + sec - end
		}
	}
	return last
}

const (
	callerPatience     = sec // the Timeout of stacks
	slowBegin, slowEnd = 10 * sec, 20 * sec
)

// copying are stacks with retries and hedges.
func copying() []stackContender {
	retry := func(b *layer.Budget) layer.RetryPolicy[*job, *job] {
		return layer.RetryPolicy[*job, *job]{Budget: b, AttemptTimeout: 250 * ms}
	}
	hedge := func(b *layer.Budget) layer.HedgePolicy[*job] { return layer.HedgePolicy[*job]{Budget: b} }
	return []stackContender{
		{"Retry and Hedge", "`Timeout(1s)`, `Retry` with attempts of 250 ms, and `Hedge` with the Budget of the Retry", func(st callStack) callStack {
			budget := layer.NewBudget(0, 0, 0)
			return st.Timeout(callerPatience).Retry(retry(budget)).Hedge(hedge(budget))
		}},
		{"Hedge", "`Timeout(1s)` and `Hedge`", func(st callStack) callStack { return st.Timeout(callerPatience).Hedge(hedge(nil)) }},
		{"Retry", "`Timeout(1s)` and `Retry` with attempts of 250 ms", func(st callStack) callStack {
			return st.Timeout(callerPatience).Retry(retry(nil))
		}},
		{"Timeout", "`Timeout(1s)` alone", func(st callStack) callStack { return st.Timeout(callerPatience) }},
		{"copies without a budget", "`Timeout(1s)`, and a second attempt after 50 ms", func(st callStack) callStack {
			return st.Timeout(callerPatience).With("copies", unlimitedCopies)
		}},
	}
}

// stackScenarios returns the scenarios of stacks in the order of the page.
func stackScenarios() []stackScenario {
	var all []stackScenario
	copies := func(name, what string, servers int, load float64) stackScenario {
		return stackScenario{
			name: name, what: what, servers: servers, workers: 2, service: 20 * ms, spread: 0.5, load: load, length: sec * 60, stacks: copying(),
			claims: []claim{goodAtLeast(100), atMost("attempts", 1.06)},
		}
	}
	for _, steady := range []struct {
		servers int
		load    float64
	}{{4, 0.75}, {10, 0.85}, {10, 0.9}} {
		all = append(all, copies(fmt.Sprintf("%d servers at %.0f %%", steady.servers, 100*steady.load),
			"steady load without any trouble", steady.servers, steady.load))
	}
	tails := copies("tails", "2 % of the attempts wait for 200 ms, whatever the load", 10, 0.03)
	tails.workers, tails.service, tails.tail, tails.delay, tails.length = 16, 5*ms, 0.02, 200, 30*sec
	tails.claims = []claim{goodAtLeast(100), p99AtMost(65)}
	all = append(all, tails)
	for _, cancels := range []bool{false, true} {
		sc := copies("twice as slow for 10 s", "all servers are twice as slow from 10 s to 20 s; they could serve all requests", 10, 0.4)
		sc.cancels, sc.length = cancels, 40*sec
		if cancels {
			sc.name += ", canceled"
			sc.what += ". They stop when the caller leaves"
		}
		sc.slow = func(at time.Duration) float64 {
			if at >= slowBegin && at < slowEnd {
				return 2
			}
			return 1
		}
		sc.claims = []claim{goodAtLeast(99), atMost("recovered after", 2)}
		all = append(all, sc)
	}
	for _, routes := range []struct{ share, times, load float64 }{{0.3, 20, 0.85}, {0.05, 50, 0.85}, {0.5, 25, 2}} {
		all = append(all, stackScenario{
			name:    fmt.Sprintf("%.0f %% cost %.0f times, load %.0f %%", 100*routes.share, routes.times, 100*routes.load),
			what:    "one server; the network takes 20 ms. The first 2 minutes do not count, because gradient2 grows slowly",
			servers: 1, workers: 50, service: 40 * ms, spread: 0.25, wire: 20 * ms, load: routes.load, share: routes.share, times: routes.times,
			length: 4 * time.Minute, from: 2 * time.Minute,
			stacks: []stackContender{
				{"AdaptiveLimit", "`AdaptiveLimit` with its defaults", func(st callStack) callStack {
					return st.AdaptiveLimit(layer.AdaptivePolicy{})
				}},
				{"gradient2", "`WindowedLimit` of a `Gradient2Limit` of Netflix's concurrency-limits, with their defaults", func(st callStack) callStack {
					return st.With("gradient2", gradient2)
				}},
				{"none", "no limit", func(st callStack) callStack { return st }},
			},
		})
	}
	for _, load := range []float64{0.9, 2, 10} {
		all = append(all, stackScenario{
			name: fmt.Sprintf("%v times the capacity", load), what: "one server of 10 workers; callers give up after 1 s",
			servers: 1, workers: 10, service: 100 * ms, spread: 0.5, load: load, length: 30 * sec,
			stacks: []stackContender{
				{"Queue", "`Timeout(1s)`, `Queue(1000, 3s)`, `Limit(10)`", func(st callStack) callStack {
					return st.Timeout(callerPatience).Queue(1000, 3*sec).Limit(10)
				}},
				{"Limit", "`Timeout(1s)`, `Limit(10)`", func(st callStack) callStack { return st.Timeout(callerPatience).Limit(10) }},
				{"first in, first out", "`Timeout(1s)`, ten slots, and a wait of up to 3 s in the order of arrival", func(st callStack) callStack {
					return st.Timeout(callerPatience).With("first in", firstIn)
				}},
			},
			claims: []claim{goodAtLeast(95)},
		})
	}
	return all
}

// stackOutcome has the medians of one scenario in the order of its stacks.
type stackOutcome struct {
	sc      stackScenario
	results []result
}

// claims returns all claims of a scenario. AdaptiveLimit is within a point of gradient2.
func (o *stackOutcome) claims() []claim {
	all := slices.Clip(o.sc.claims)
	for i, c := range o.sc.stacks {
		if c.name == "gradient2" {
			bound := o.results[i].Good
			all = append(all, claim{"good against gradient2", fmt.Sprintf("%.2f %%", bound), func(r *result) (float64, bool) {
				return r.Good, r.Good >= bound-1
			}})
		}
	}
	return all
}

// TestStacks compares stacks of layers. The short form has two stacks in a third of the scenarios, with
// one seed.
func TestStacks(t *testing.T) {
	if raced {
		t.Skip("package layer has the same scenarios in a smaller form")
	}
	page, err := os.ReadFile("../SIMULATION.md")
	require.NoError(t, err)
	full := os.Getenv("GOTOWER_TESTS") == "full"
	n := 1
	if full {
		n = len(seeds())
	}
	for i, sc := range stackScenarios() {
		if !full && i%3 != 1 {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			o := stackOutcome{sc: sc}
			if !full {
				o.sc.stacks = sc.stacks[:2]
			}
			for _, c := range o.sc.stacks {
				o.results = append(o.results, compared(seeds()[:n], func(seed uint64) result { return sc.run(t, c, seed) }))
			}
			for _, c := range o.claims() {
				if value, ok := c.met(&o.results[0]); !ok && !isListed(page, sc.name, c) {
					t.Errorf("%s: %s, got %.2f", c.what, c.bound, value)
				}
			}
		})
	}
}

// write writes the section of the page about the scenario.
func (o *stackOutcome) write(b *strings.Builder) {
	sc := &o.sc
	fmt.Fprintf(b, "\n### %s\n\n%s. %.0f requests per second for %v.\n\n| stack | p50 | p99 | good |", sc.name,
		strings.ToUpper(sc.what[:1])+sc.what[1:], sc.load*sc.capacity(), sc.length)
	line := "\n|---|--:|--:|--:|"
	for _, f := range o.results[0].Extra {
		fmt.Fprintf(b, " %s, %s |", f.Name, f.Unit)
		line += "--:|"
	}
	b.WriteString(line + "\n")
	for i, c := range sc.stacks {
		r := &o.results[i]
		fmt.Fprintf(b, "| %s | %.1f | %.1f | %.2f |", c.name, r.P50, r.P99, r.Good)
		for _, f := range r.Extra {
			fmt.Fprintf(b, " %s |", number(f.Value))
		}
		b.WriteString("\n")
	}
}
