package layertest

import (
	"fmt"
	"runtime"
	"strings"
	"testing/synctest"
	"time"
)

// goroutines returns the stacks of the other goroutines in the current synctest bubble. The keys
// are their numbers. The result is nil outside of a bubble. The first line of a stack tells the
// bubble's number:
//
//	goroutine 10 [chan receive (durable), synctest bubble 1]:
func goroutines() map[string]string {
	// The first stack is this goroutine's own. Its header names the bubble, or none.
	current, rest, _ := strings.Cut(string(stacks()), "\n\n")
	current, _, _ = strings.Cut(current, "\n")
	_, bubble, ok := strings.Cut(current, ", synctest bubble ")
	if !ok {
		return nil
	}
	bubble = bubble[:strings.IndexAny(bubble, "],")]
	stacksByID := make(map[string]string)
	// Goroutines of other bubbles, as of parallel tests, and of the runtime are left out.
	for stack := range strings.SplitSeq(rest, "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble "+bubble+"]") || strings.Contains(header, "synctest bubble "+bubble+",") {
			number, _, _ := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
			stacksByID[number] = stack
		}
	}
	return stacksByID
}

// stacks returns all goroutines' stacks, the caller's first.
func stacks() []byte {
	for size := 4096 * (runtime.NumGoroutine() + 1); ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return buf[:n]
		}
	}
}

// checkLeaks returns an error, with the stack, if a goroutine runs that is missing in baseline, an
// earlier result of goroutines. If background is true, checkLeaks first waits for a second, so that
// goroutines of the layer or service under test can end, whose context may have just ended.
func checkLeaks(baseline map[string]string, background bool) error {
	if background {
		time.Sleep(time.Second)
	}
	synctest.Wait()
	if leaked := startedSince(baseline); len(leaked) > 0 {
		return fmt.Errorf("%d goroutines leak, one of them is\n%s", len(leaked), leaked[0])
	}
	return nil
}

// startedSince returns the stacks of those goroutines in this bubble that are missing in baseline,
// an earlier result of goroutines.
func startedSince(baseline map[string]string) (stacks []string) {
	for number, stack := range goroutines() {
		if _, old := baseline[number]; !old {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
