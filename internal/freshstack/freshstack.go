// Package freshstack keeps the stacks of waiting goroutines small.
package freshstack

import (
	"runtime"

	"github.com/gotower/gotower/internal/panics"
)

// Call runs f on a new goroutine and waits until f returns. This way f does not grow the caller's
// stack, which matters if the goroutine then waits for a long time, because it keeps its stack.
// The runtime shrinks a stack only when less than a quarter of it is in use.
//
// If f panics, Call panics with a [panics.Error]. If f ends its goroutine, Call ends the caller's
// goroutine.
func Call(f func()) {
	var err error
	returned := false
	// Without a panic, returned tells whether f has called runtime.Goexit.
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = panics.Contain(f)
		returned = true
	}()
	<-done
	switch {
	case err != nil:
		panic(err)
	case !returned:
		runtime.Goexit()
	}
}
