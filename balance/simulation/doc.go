// Package simulation compares the balancer with other balancers, in virtual time and with seeds, so
// that runs are reproducible. It contains only tests; SIMULATION.md shows the results.
//
//	         arrivals (Poisson)
//	             │
//	             ▼
//	┌─ policy ──────────────┐    ┌─ backend ───────────────┐
//	│ balance.New, or       │ ─▶ │ a queue, some workers,  │
//	│ the rule of a peer    │ ◀─ │ and its faults          │
//	└───────────────────────┘    └─────────────────────────┘
//	      first byte, end
//
// One goroutine processes all events in the order of their times. The real balancer runs in
// a bubble of testing/synctest. The clock of the bubble is the virtual time. The rules of
// the other balancers get the time as an argument.
//
// stacks_test.go compares stacks of layers above the real balancer. Their calls need goroutines, so that
// they have servers of their own.
//
// engine_test.go has the engine, scenarios_*_test.go the scenarios and peer_*_test.go the
// other balancers. contender_test.go lists all balancers.
package simulation

//go:generate go test -run ^TestTable$ -timeout 90m . -table
