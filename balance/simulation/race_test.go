//go:build race

package simulation

// raced reports whether the race detector is on. Each run has a single goroutine.
const raced = true
