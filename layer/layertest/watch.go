package layertest

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"time"
)

// patience is how long a check may take: a hundred times what it needs.
var patience = 2 * time.Minute

// watch ends the program when a check has not ended in time, unless stop is
// called. It must be called outside of the bubble, whose own clock stands still
// then, and which nothing but the end of the program can end.
func watch(check string, d declared) (stop func() bool) {
	limit := patience + time.Duration(d.limit+d.queue)*10*time.Millisecond
	return time.AfterFunc(limit, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("layertest: check %q has not ended in %v: a goroutine spins, or blocks on what does not block "+
			"durably in a testing/synctest bubble, such as a mutex held during a call, I/O, or a channel made outside of it\n\n%s",
			check, limit, unrested()))
	}).Stop
}

// unrested returns the stacks of the goroutines of all bubbles that do not block
// durably.
func unrested() []byte {
	var all [][]byte
	for stack := range bytes.SplitSeq(stacks(true), []byte("\n\n")) {
		header, _, _ := bytes.Cut(stack, []byte("\n"))
		if bytes.Contains(header, []byte("synctest bubble")) && !bytes.Contains(header, []byte("(durable)")) {
			all = append(all, stack)
		}
	}
	return bytes.Join(all, []byte("\n\n"))
}
