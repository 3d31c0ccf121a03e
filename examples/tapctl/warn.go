package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// again is the time after which an unchanged warning of a process is printed again.
const again = time.Minute

// warner returns a function that prints errors to w. It omits an error that equals the
// previous error of the same process, because a process that cannot be reached causes an
// error at each attempt. It prints the error again after a minute.
func warner(w io.Writer) func(error) {
	// printed is what was printed last about a process, and when.
	type printed struct {
		text string
		when time.Time
	}
	var mu sync.Mutex
	last := map[string]printed{}
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		s := printed{text.CleanLines(err.Error()), time.Now()}
		// An error begins with the name of its process.
		process, _, _ := strings.Cut(s.text, ": ")
		if previous := last[process]; previous.text != s.text || s.when.Sub(previous.when) > again {
			last[process] = s
			fmt.Fprintln(w, "tapctl:", s.text)
		}
	}
}
