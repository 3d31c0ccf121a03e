package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// again is after how long something that goes on is said again.
const again = time.Minute

// warner returns a function that prints errors: of each process not the same one
// time and again, as it is asked time and again.
func warner(w io.Writer) func(error) {
	type said struct {
		text string
		when time.Time
	}
	var mu sync.Mutex
	last := map[string]said{}
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		s := said{text.CleanLines(err.Error()), time.Now()}
		process, _, _ := strings.Cut(s.text, ": ")
		if before := last[process]; before.text != s.text || s.when.Sub(before.when) > again {
			last[process] = s
			fmt.Fprintln(w, "tapctl:", s.text)
		}
	}
}
