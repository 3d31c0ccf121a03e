// Package simulation compares the balancer with those of others, in virtual time and with
// seeds, so that runs can be repeated. It has tests only; SIMULATION.md has the results.
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
// One goroutine runs from event to event. The real balancer runs in a bubble of
// testing/synctest, whose clock is the virtual time. The rules of peers get the time as
// an argument.
//
// go generate writes the table and the plot in some minutes.
package simulation

//go:generate go test -run ^TestTable$ -timeout 60m . -table
