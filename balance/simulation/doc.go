// Package simulation compares the balancer with those of others, in virtual
// time and with seeds, so that a run can be had again. It is all tests; what
// it found is in SIMULATION.md.
//
//	         arrivals (Poisson)
//	             │
//	             ▼
//	┌─ policy ──────────────┐    ┌─ backend ───────────────┐
//	│ balance.New, as it is │ ─▶ │ a queue, some workers,  │
//	│ or the rule of a peer │ ◀─ │ a script of its troubles │
//	└───────────────────────┘    └─────────────────────────┘
//	      first byte, end
//
// One goroutine goes from event to event. For the real balancer it runs in a
// bubble of testing/synctest and sleeps until each, so that the balancer's own
// clock readings are those of the simulation; the rules of peers are given the
// time.
//
// The table and the plot are written by go generate, in some minutes.
package simulation

//go:generate go test -run ^TestTable$ -timeout 60m . -table
