package simulation

import (
	"testing"
	"testing/synctest"
	"time"
)

// contender is what is compared.
type contender struct {
	name string
	ours bool
	peer func(seed uint64) policy // nil for ours
	variant
}

// contenders are ours, and then the peers.
func contenders() []contender {
	var all []contender
	for _, v := range variants() {
		all = append(all, contender{name: v.name, ours: true, variant: v})
	}
	for _, p := range []struct {
		name string
		make func(seed uint64) policy
	}{
		{"round robin", newRoundRobin},
		{"random", newRandom},
		{"least loaded, scan of all", newLeastLoaded},
		{"least loaded of two (grpc-go)", newLeastOfTwo},
		{"tower", newTower},
		{"linkerd", newLinkerd},
		{"finagle", newFinagle},
		{"kratos", newKratos},
		{"go-zero", newGoZero},
	} {
		all = append(all, contender{name: p.name, peer: p.make})
	}
	return all
}

// run simulates one scenario under c.
func run(t *testing.T, sc *scenario, c contender, seed uint64) (log []*request) {
	t.Helper()
	clients := max(sc.clients, 1)
	s := &simulation{scenario: sc}
	if !c.ours {
		for i := range clients {
			s.policies = append(s.policies, c.peer(seed*1000+uint64(i)))
		}
		return s.simulate(seed)
	}
	synctest.Test(t, func(*testing.T) {
		start := time.Now()
		s.sleep = func(until time.Duration) { time.Sleep(until - time.Since(start)) }
		for i := range clients {
			s.policies = append(s.policies, newOurs(sc, c.variant, seed*1000+uint64(i)))
		}
		log = s.simulate(seed)
	})
	return log
}
