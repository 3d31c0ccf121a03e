// Package recovered turns a panic of a callback into an error, for goroutines that
// have no caller that the panic could reach.
package recovered

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Do calls f and returns its error. If f panics, the error says so, with the name of
// the callback, the value, and the file and line that panicked.
func Do(name string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked(name, v)
		}
	}()
	return f()
}

// panicked is called by the deferred function that recovered v.
func panicked(name string, v any) error {
	if cause, ok := v.(error); ok {
		return fmt.Errorf("%s panicked%s: %w", name, place(), cause)
	}
	return fmt.Errorf("%s panicked%s: %v", name, place(), v)
}

// place is the file and line of the first frame below those of the recovery that is
// not of the runtime.
func place() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	for frame, more := frames.Next(); more; frame, more = frames.Next() {
		if !strings.HasPrefix(frame.Function, "runtime.") && !strings.HasPrefix(frame.Function, "internal/runtime/") {
			return fmt.Sprintf(" at %s:%d", filepath.Base(frame.File), frame.Line)
		}
	}
	return ""
}
