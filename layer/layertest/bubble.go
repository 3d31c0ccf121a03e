package layertest

import (
	"fmt"
	"runtime"
	"strings"
	"testing/synctest"
	"time"
)

// goroutines returns the stacks of the other goroutines in the current synctest bubble.
// The keys are the numbers of the goroutines. The result is nil outside of a bubble. The
// first line of a stack has the number of the bubble:
//
//	goroutine 10 [chan receive (durable), synctest bubble 1]:
func goroutines() map[string]string {
	own, others, _ := strings.Cut(string(stacks()), "\n\n")
	own, _, _ = strings.Cut(own, "\n")
	_, bubble, ok := strings.Cut(own, ", synctest bubble ")
	if !ok {
		return nil
	}
	bubble = bubble[:strings.IndexAny(bubble, "],")]
	all := make(map[string]string)
	for stack := range strings.SplitSeq(others, "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble "+bubble+"]") || strings.Contains(header, "synctest bubble "+bubble+",") {
			number, _, _ := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
			all[number] = stack
		}
	}
	return all
}

// stacks returns the stacks of all goroutines. That of the caller comes first.
func stacks() []byte {
	for size := 4096 * (runtime.NumGoroutine() + 1); ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return buf[:n]
		}
	}
}

// checkLeaks returns an error if a goroutine runs that is missing in the argument before, an
// earlier result of the function goroutines. The error has the stack of one such goroutine. If
// background is true, checkLeaks first waits for a second. The goroutines of the layer or service
// under test then have time to end, because their context may have just ended.
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

// startedSince returns the stacks of the goroutines in this bubble that are missing in the argument
// before, an earlier result of the function goroutines.
func startedSince(before map[string]string) (stacks []string) {
	for number, stack := range goroutines() {
		if _, old := before[number]; !old {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
