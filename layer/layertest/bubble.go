package layertest

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing/synctest"
	"time"
)

// goroutines returns the stacks of the goroutines of this bubble by their
// number. The first line of a stack names the bubble:
//
//	goroutine 10 [chan receive (durable), synctest bubble 1]:
func goroutines() map[string]string {
	first, _, _ := bytes.Cut(stacks(false), []byte("\n"))
	_, bubble, ok := strings.Cut(string(first), ", synctest bubble ")
	if !ok {
		return nil
	}
	bubble = bubble[:strings.IndexAny(bubble, "],")]
	all := make(map[string]string)
	for stack := range strings.SplitSeq(string(stacks(true)), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble "+bubble+"]") || strings.Contains(header, "synctest bubble "+bubble+",") {
			number, _, _ := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
			all[number] = stack
		}
	}
	return all
}

func stacks(all bool) []byte {
	for size := 64 << 10; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, all); n < size {
			return buf[:n]
		}
	}
}

// checkLeaks returns an error with the stack of a goroutine that is not in
// before. Goroutines of a subject with a context have a second to end.
func checkLeaks(before map[string]string, background bool) error {
	if background {
		time.Sleep(time.Second)
	}
	synctest.Wait()
	if leaked := startedSince(before); len(leaked) > 0 {
		return fmt.Errorf("%d goroutines leak, one of them is\n%s", len(leaked), leaked[0])
	}
	return nil
}

// startedSince returns the stacks of the goroutines that are not in before.
func startedSince(before map[string]string) (stacks []string) {
	for number, stack := range goroutines() {
		if _, old := before[number]; !old {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// checkTimeout is the real time that a check may take. It is a hundred times the usual time.
var checkTimeout = 2 * time.Minute

// startWatchdog ends the program when a check exceeds its time, unless stop is called. The
// caller is outside of the bubble, because time stands still in a bubble that hangs.
func startWatchdog(check string, held int) (stop func() bool) {
	limit := checkTimeout + time.Duration(held)*10*time.Millisecond
	return time.AfterFunc(limit, func() {
		var busy [][]byte
		for stack := range bytes.SplitSeq(stacks(true), []byte("\n\n")) {
			header, _, _ := bytes.Cut(stack, []byte("\n"))
			if bytes.Contains(header, []byte("synctest bubble")) && !bytes.Contains(header, []byte("(durable)")) {
				busy = append(busy, stack)
			}
		}
		debug.SetTraceback("all")
		panic(fmt.Sprintf("layertest: check %q has not ended in %v: a goroutine spins, or blocks in a way that is not durable "+
			"in a testing/synctest bubble, such as a mutex held during a call, I/O, or a channel made outside of it\n\n%s",
			check, limit, bytes.Join(busy, []byte("\n\n"))))
	}).Stop
}
