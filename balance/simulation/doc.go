// Package simulation compares the balancer with other balancers, in virtual time and with
// seeds, so that runs are reproducible. It has only tests; SIMULATION.md has the results.
//
//	         arrivals (Poisson)
//	             │
//	             ▼
//	┌─ policy ──────────────┐    ┌─ backend ───────────────┐
//	│ balance.New, or       │ ─▶ │ a queue, some workers,  │
//	│ the rule of a peer    │ ◀─ │ and its troubles        │
//	└───────────────────────┘    └─────────────────────────┘
//	      first byte, end
//
// One goroutine processes events in order of time. The real balancer runs in a bubble
// of testing/synctest, whose clock is the virtual time. The rules of the other
// balancers get the time as an argument.
//
// engine_test.go has the engine, scenarios_*_test.go the scenarios and peer_*_test.go the
// peers. contender_test.go lists all balancers.
package simulation

//go:generate go test -run ^TestTable$ -timeout 90m . -table
