// Package simulation compares the balancer with other balancers, in virtual time and with
// seeds, so that runs are reproducible. It has only tests; SIMULATION.md has the results.
//
//	         arrivals (Poisson)
//	             │
//	             ▼
//	┌─ policy ──────────────┐    ┌─ backend ───────────────┐
//	│ balance.New, or       │ ─▶ │ a queue, some workers,  │
//	│ the rule of a peer    │ ◀─ │ a script of its troubles │
//	└───────────────────────┘    └─────────────────────────┘
//	      first byte, end
//
// One goroutine processes events in order of time. The real balancer runs in a bubble
// of testing/synctest, whose clock is the virtual time. The rules of the other
// balancers get the time as an argument.
//
// go generate writes the table and the plot. It takes some minutes.
package simulation

//go:generate go test -run ^TestTable$ -timeout 60m . -table
