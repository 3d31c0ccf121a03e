package layer

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// simServer is the server below the limit: workers that serve a FIFO queue, and the network
// delay in both directions.
type simServer struct {
	workers func(at time.Duration) int
	service func(at time.Duration) time.Duration
	wire    time.Duration
	spread  float64 // of the service time: sigma of a log-normal with the mean 1
	slow    float64 // share of requests that take times as long
	times   float64
	room    int // requests in it above which it asks for fewer; 0: never
}

// capacity returns the number of requests per second that the server can serve.
func (s simServer) capacity(at time.Duration) float64 {
	return float64(s.workers(at)) / s.service(at).Seconds() / (1 + s.slow*(s.times-1))
}

type simRequest struct{ began time.Duration }

type simEvent struct {
	at   time.Duration
	what func()
	seq  int // of equal times the first made is first
}

type simEvents []simEvent

func (e *simEvents) Len() int { return len(*e) }
func (e *simEvents) Less(i, j int) bool {
	a, b := (*e)[i], (*e)[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}
func (e *simEvents) Swap(i, j int) { (*e)[i], (*e)[j] = (*e)[j], (*e)[i] }
func (e *simEvents) Push(x any)    { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// simulation is an open loop of requests in virtual time through a gate to a server. It has
// one goroutine and one random source, so that each run is the same.
type simulation struct {
	server  simServer
	offered func(at time.Duration) float64 // requests a second
	gate    *adaptiveGate
	rng     *rand.Rand

	now    time.Duration
	events simEvents
	seq    int
	queue  []simRequest
	busy   int

	seconds []simSecond
}

type simSecond struct {
	offered, served, rejected int
	limit                     int64
	latencies                 []time.Duration
}

func (s *simulation) in(d time.Duration, what func()) {
	s.seq++
	heap.Push(&s.events, simEvent{s.now + d, what, s.seq})
}

func (s *simulation) run(length time.Duration) {
	s.seconds = make([]simSecond, int(length.Seconds()))
	s.arriveNext()
	for s.events[0].at < length {
		s.step()
	}
}

func (s *simulation) step() {
	e := heap.Pop(&s.events).(simEvent)
	s.now = e.at
	e.what()
}

func (s *simulation) second() *simSecond { return &s.seconds[int(s.now.Seconds())] }

func (s *simulation) arriveNext() {
	wait := s.rng.ExpFloat64() / s.offered(s.now)
	s.in(time.Duration(wait*float64(time.Second)), func() {
		s.arrive()
		s.arriveNext()
	})
}

func (s *simulation) arrive() {
	s.second().offered++
	s.second().limit = s.gate.limit.Load()
	if !s.gate.take() {
		s.second().rejected++
		return
	}
	if s.server.room > 0 && s.busy+len(s.queue) >= s.server.room {
		s.in(s.server.wire, func() {
			if s.gate.drop(s.now) {
				s.watchProbe()
			}
			s.gate.inFlight.Add(-1)
		})
		return
	}
	s.queue = append(s.queue, simRequest{s.now})
	s.serve()
}

func (s *simulation) work() time.Duration {
	sigma := s.server.spread
	takes := float64(s.server.service(s.now)) * math.Exp(sigma*s.rng.NormFloat64()-sigma*sigma/2)
	if s.server.slow > 0 && s.rng.Float64() < s.server.slow {
		takes *= s.server.times
	}
	return time.Duration(takes)
}

func (s *simulation) serve() {
	for s.busy < s.server.workers(s.now) && len(s.queue) > 0 {
		r := s.queue[0]
		s.queue = s.queue[1:]
		s.busy++
		s.in(s.work(), func() {
			s.busy--
			s.in(s.server.wire, func() { s.respond(r) })
			s.serve()
		})
	}
}

func (s *simulation) respond(r simRequest) {
	if s.gate.sample(r.began, s.now) {
		s.watchProbe()
	}
	s.gate.inFlight.Add(-1)
	s.second().served++
	s.second().latencies = append(s.second().latencies, s.now-r.began)
}

// watchProbe does what the method of the layer does, in virtual time.
func (s *simulation) watchProbe() {
	began, after := s.gate.probe()
	if after == 0 {
		return
	}
	var look func()
	look = func() {
		if _, again := s.gate.giveUp(began, s.now); again {
			s.in(after, look)
		}
	}
	s.in(after, look)
}

// simRow has the figures of one part of a simulation.
type simRow struct {
	goodput  float64 // of what could be served
	p50, p99 time.Duration
	rejected float64 // share of the requests
	least    int64   // limits
	most     int64
}

func (s *simulation) row(from, to int) simRow {
	var could float64
	var served, offered, rejected int
	var latencies []time.Duration
	row := simRow{least: math.MaxInt64}
	for i, sec := range s.seconds[from:to] {
		at := time.Duration(from+i)*time.Second + time.Second/2
		could += min(s.server.capacity(at), float64(sec.offered))
		served, offered, rejected = served+sec.served, offered+sec.offered, rejected+sec.rejected
		row.least, row.most = min(row.least, sec.limit), max(row.most, sec.limit)
		latencies = append(latencies, sec.latencies...)
	}
	slices.Sort(latencies)
	row.goodput, row.rejected = float64(served)/could, float64(rejected)/float64(offered)
	row.p50, row.p99 = latencies[len(latencies)/2], latencies[len(latencies)*99/100]
	return row
}

func fixed[T any](v T) func(time.Duration) T { return func(time.Duration) T { return v } }

// ramp returns a function that changes from a to b between two times.
func ramp(a, b float64, from, to time.Duration) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		part := min(max(float64(at-from)/float64(to-from), 0), 1)
		return a + (b-a)*part
	}
}

// between returns a function that is b between two times, and a before and after.
func between[T any](a, b T, from, to time.Duration) func(time.Duration) T {
	return func(at time.Duration) T {
		if at >= from && at < to {
			return b
		}
		return a
	}
}

type simScenario struct {
	name   string
	server simServer
	load   float64 // of the capacity
	policy AdaptivePolicy
	parts  []simPart
}

type simPart struct {
	name     string
	from, to int // seconds
	p99      time.Duration
}

const simLength = 30

// simIdle is the p99 latency of the usual server with one request at a time.
const simIdle = 80 * time.Millisecond

func usualSimServer() simServer {
	return simServer{workers: fixed(50), service: fixed(40 * time.Millisecond), wire: 10 * time.Millisecond, spread: 0.25}
}

func simScenarios() []simScenario {
	usual := usualSimServer()
	with := func(change func(*simServer)) simServer {
		s := usual
		change(&s)
		return s
	}
	workers := func(a, b float64) func(*simServer) {
		n := ramp(a, b, 2*time.Second, 28*time.Second)
		return func(s *simServer) { s.workers = func(at time.Duration) int { return int(n(at)) } }
	}
	whole := []simPart{{"all of it", 0, simLength, 5 * simIdle}}
	halved := []simPart{{"before", 0, 10, 5 * simIdle}, {"halved", 10, 20, 5 * simIdle}, {"restored", 20, simLength, 5 * simIdle}}
	slower := []simPart{{"before", 0, 10, 5 * simIdle}, {"slow", 10, 20, 3 * 5 * simIdle}, {"restored", 20, simLength, 5 * simIdle}}
	settles := []simPart{{"first 3 s", 0, 3, 25 * simIdle}, {"then", 3, simLength, 5 * simIdle}}
	return []simScenario{
		{name: "steady at 0.8", server: usual, load: 0.8, parts: whole},
		{name: "overload at 2", server: usual, load: 2, parts: whole},
		{name: "overload at 5", server: usual, load: 5, parts: whole},
		{name: "half the workers", load: 1.2, parts: halved, server: with(func(s *simServer) {
			s.workers = between(50, 25, 10*time.Second, 20*time.Second)
		})},
		{name: "three times as slow", load: 1.2, parts: slower, server: with(func(s *simServer) {
			s.service = between(40*time.Millisecond, 120*time.Millisecond, 10*time.Second, 20*time.Second)
		})},
		{name: "slow ramp up", load: 1.2, server: with(workers(20, 100)), parts: whole},
		{name: "slow ramp down", load: 1.2, server: with(workers(100, 20)), parts: whole},
		{name: "jitter", load: 1.5, server: with(func(s *simServer) { s.spread = 0.83 }), parts: whole},
		{name: "one in 50 is slow", load: 1.5, server: with(func(s *simServer) { s.slow, s.times = 0.02, 20 }),
			parts: []simPart{{"all of it", 0, simLength, 20 * simIdle}}},
		{name: "throttles at 60", load: 2, server: with(func(s *simServer) { s.room = 60 }), parts: whole},
		{name: "a single worker", load: 2, server: with(func(s *simServer) { s.workers = fixed(1) }), parts: settles},
		{name: "starts at 10 times", load: 2, server: with(func(s *simServer) { s.workers = fixed(10) }),
			policy: AdaptivePolicy{Initial: 125}, parts: settles},
	}
}

// TestAdaptiveSimulation checks the figures in testdata/adaptive.txt: latencies in
// milliseconds, and goodput as a share of the offered requests that the server could
// have served.
func TestAdaptiveSimulation(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-20s %-10s %7s %5s %5s %8s  %s\n", "scenario", "part", "goodput", "p50", "p99", "rejected", "limit")
	for _, sc := range simScenarios() {
		t.Run(sc.name, func(t *testing.T) { sc.simulate(t, &table) })
	}
	t.Log("\n" + table.String())
	want, err := os.ReadFile("testdata/adaptive.txt")
	require.NoError(t, err)
	if runtime.GOARCH != "amd64" {
		t.Skip("where multiplication and addition are one instruction, chance falls another way")
	}
	require.Equal(t, string(want), table.String())
}

func (sc simScenario) simulate(t *testing.T, table *strings.Builder) {
	s := &simulation{
		server: sc.server, gate: newAdaptiveGate(sc.policy.filled()), rng: rand.New(rand.NewPCG(1, 2)),
		offered: func(at time.Duration) float64 { return sc.load * sc.server.capacity(at) },
	}
	s.run(simLength * time.Second)
	for _, part := range sc.parts {
		row := s.row(part.from, part.to)
		fmt.Fprintf(table, "%-20s %-10s %6.0f%% %5d %5d %7.0f%%  %d-%d\n", sc.name, part.name, row.goodput*100,
			row.p50.Milliseconds(), row.p99.Milliseconds(), row.rejected*100, row.least, row.most)
		assert.GreaterOrEqual(t, row.goodput, 0.9, part.name)
		assert.LessOrEqual(t, row.p99, part.p99, part.name)
		assert.LessOrEqual(t, row.rejected, 1-0.9*min(1/sc.load, 1), part.name)
	}
}

// The costs of routes differ, which must not look like a queue: nearly all that the server can serve
// is admitted. The first ten seconds, in which the limit grows from 20, do not count.
func TestAdaptiveRoutes(t *testing.T) {
	for _, row := range []struct {
		share, times, load float64
		goodput, rejected  float64
	}{
		{0.3, 20, 0.85, 0.99, 0.005},
		{0.05, 50, 0.85, 0.98, 0.018}, // of Gradient2 2.1 to 2.6 % are rejected
		{0.5, 25, 2, 0.985, 0.51},     // Gradient2 serves all that can be served
	} {
		t.Run(fmt.Sprintf("%v cost %v times, load %v", row.share, row.times, row.load), func(t *testing.T) {
			const seeds = 8
			var goodput, rejected float64
			for seed := range uint64(seeds) {
				s := &simulation{
					server: usualSimServer(), gate: newAdaptiveGate(AdaptivePolicy{}.filled()), rng: rand.New(rand.NewPCG(seed, 2)),
				}
				s.server.slow, s.server.times = row.share, row.times
				s.offered = fixed(row.load * s.server.capacity(0))
				s.run(time.Minute)
				part := s.row(10, 60)
				goodput += part.goodput / seeds
				rejected += part.rejected / seeds
			}
			t.Logf("goodput %.4f, rejected %.4f", goodput, rejected)
			assert.GreaterOrEqual(t, goodput, row.goodput)
			assert.LessOrEqual(t, rejected, row.rejected)
		})
	}
}
