// Package freshstack keeps the stacks of waiting goroutines small.
package freshstack

import (
	"runtime"

	"github.com/gotower/gotower/internal/panics"
)

// Call runs f on a new goroutine and waits until f returns. The stack of the caller then
// does not grow. A stack that has grown stays large while a quarter of it is in use, so a
// goroutine that waits for the next message of a stream would keep it.
//
// If f panics, Call panics with a [panics.Error]. If f ends its goroutine, Call ends the
// goroutine of the caller.
func Call(f func()) {
	var err error
	returned := false
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
