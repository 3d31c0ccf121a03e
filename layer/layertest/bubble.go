package layertest

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing/synctest"
	"time"
)

// settle returns when every other goroutine of the bubble waits for something
// that only time or the check can bring. No time passes.
func settle() { synctest.Wait() }

// exit ends the goroutine, as t.FailNow does.
func exit() { runtime.Goexit() }

// goroutines returns those of this bubble, by their number. What a goroutine
// belongs to is found nowhere but in the first line of its stack:
//
//	goroutine 10 [chan receive (durable), synctest bubble 1]:
func goroutines() map[string]string {
	first, _, _ := bytes.Cut(stacks(false), []byte("\n"))
	_, mine, ok := strings.Cut(string(first), ", synctest bubble ")
	if !ok {
		return nil
	}
	mine, _, _ = strings.Cut(mine, "]")
	mine, _, _ = strings.Cut(mine, ",")
	all := make(map[string]string)
	for stack := range strings.SplitSeq(string(stacks(true)), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble "+mine+"]") || strings.Contains(header, "synctest bubble "+mine+",") {
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

// leftSince returns an error that shows the goroutines that were not there
// before. What works in the background is given a second to stop.
func (d declared) leftSince(before map[string]string) error {
	if d.background {
		time.Sleep(time.Second)
	}
	settle()
	left := newSince(before)
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%d goroutines are left behind, one of them is\n%s", len(left), left[0])
}

// newSince returns the stacks of the goroutines that were not there before.
func newSince(before map[string]string) (stacks []string) {
	for number, stack := range goroutines() {
		if _, old := before[number]; !old {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
