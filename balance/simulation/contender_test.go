package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/balance"
)

// contender is a balancer in the comparison.
type contender struct {
	name, rule, source string
	kind               kind
	create             func(e env) policy
	policy             balance.Policy // of the real balancer
}

// kind is the information that a contender has.
type kind int

const (
	ours     kind = iota
	local         // its own requests
	feedback      // reports of the backends
	perfect       // the state of all backends
)

// env is the environment of a policy.
type env struct {
	*scenario
	tier    *tier
	seed    uint64
	client  int
	clients int
}

const ourDefault = "gotower"

func contenders() []contender {
	return []contender{
		{ourDefault, "`balance.New` with its defaults", "this package", ours, nil, balance.Policy{}},
		{"round robin", "in turn", "", local, newRoundRobin, balance.Policy{}},
		{"random", "one at random", "", local, newRandom, balance.Policy{}},
		{"least request, scan", "the fewest requests in flight of all; ties at random", "", local, newLeastRequestScan, balance.Policy{}},
		{"grpc-go", "`least_request`: the fewest requests of two, drawn with replacement", "code", local, newLeastOfTwo, balance.Policy{}},
		{"envoy", "least request of two with outlier detection (5 consecutive errors or success rate, 30 s, at most 10 %) and panic threshold of 50 %",
			"documentation; no slow start, no split of local errors", local, newEnvoy, balance.Policy{}},
		{"tower", "two choices by peak EWMA × (in flight + 1), 30 ms at first, decay 10 s, a read writes the decayed value", "code", local, newTower, balance.Policy{}},
		{"linkerd", "tower with failure accrual: 7 consecutive failures eject for 1 s to 60 s, then one probe", "code", local, newLinkerd, balance.Policy{}},
		{"linkerd, load biaser", "a read does not write, a failure counts as 5 s, 1 s at first; with failure accrual",
			"code, without hints of the server", local, newLoadBiaser, balance.Policy{}},
		{"finagle", "P2C peak EWMA: one probe for a new endpoint; 5 consecutive failures eject for 5 s to 5 min", "code", local, newFinagle, balance.Policy{}},
		{"finagle, aperture", "deterministic aperture of 12, weighted P2C by least load; knows its number among the clients", "code, without failure accrual", local, newAperture, balance.Policy{}},
		{"kratos", "`selector/p2c`: averages over 600 ms, the loser forced after 3 s", "code, compared with the original", local, newKratos, balance.Policy{}},
		{"go-zero", "`p2c_ewma`: √latency × (in flight + 1) over 10 s, the loser forced after 1 s", "code, compared with the original", local, newGoZero, balance.Policy{}},
		{"prequal", "3 probes for each request, pool of 16, hot-cold lexicographic rule with a quantile of 0.84",
			"paper (NSDI 2024); probes take no time, no error aversion", feedback, newPrequal, balance.Policy{}},
		{"c3", "all endpoints ranked by R − 1/μ + q³/μ with the queue and the service time of each response",
			"paper (NSDI 2015) and its Cassandra code; no rate control", feedback, newC3, balance.Policy{}},
		{"join idle queue", "a backend with a free worker joins the queue of a random client; random without one", "paper (2011), JIQ-Random", feedback, newJoinIdleQueue, balance.Policy{}},
		{"oracle", "the earliest expected end by the true queue, workers and median time; the best of 100 random ones above 300 endpoints",
			"the bound", perfect, newOracle, balance.Policy{}},
	}
}

// run simulates one scenario with c and returns its calls.
func run(t *testing.T, sc *scenario, c contender, seed uint64) *simulation {
	t.Helper()
	s := &simulation{scenario: sc}
	create := func(t *tier, client int, seed uint64) policy {
		if c.kind == ours {
			return newReal(sc, c.policy, seed)
		}
		p := c.create(env{sc, t, seed, client, len(t.retries)})
		if sc.breaker != nil && c.kind != perfect {
			return newGuarded(sc, p)
		}
		return p
	}
	if c.kind != ours && sc.breaker == nil {
		s.run(seed, create)
		return s
	}
	synctest.Test(t, func(*testing.T) {
		start := time.Now()
		s.sleep = func(until time.Duration) { time.Sleep(until - time.Since(start)) }
		s.run(seed, create)
	})
	return s
}
