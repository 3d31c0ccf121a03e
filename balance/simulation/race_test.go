//go:build race

package simulation

// raced says that the race detector is at work. It makes all of this many times
// slower, and there is one goroutine to watch.
const raced = true
