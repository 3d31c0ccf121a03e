// Package panics recovers panics in callbacks, so that they do not end the process.
//
// This module's rule: a panic on the caller's goroutine reaches the caller after all resources
// are released. A panic on one of the module's own goroutines becomes an [Error].
package panics

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
)

// Error is a panic that was recovered from a callback on one of this module's goroutines.
// [errors.Is] does not look into the panic value, because that value may be an error with another
// meaning.
type Error struct {
	Value any    // what was passed to panic
	Stack []byte // the stack of the goroutine, as runtime/debug returns it

	place string // " at file:line", or ""
}

// Error returns the value, and the file and line of the panic.
func (e *Error) Error() string { return fmt.Sprintf("panic%s: %v", e.place, e.Value) }

// ErrExited is the error of a callback that called runtime.Goexit, which ends its
// goroutine.
var ErrExited = errors.New("the callback ended its goroutine")

// Recover recovers a panic of the function that defers Recover, and stores an [Error] in
// *err:
//
//	defer panics.Recover(&err)
func Recover(err *error) {
	switch v := recover().(type) {
	case nil:
	case *Error: // recovered before, on another goroutine
		*err = v
	default:
		*err = &Error{Value: v, Stack: debug.Stack(), place: place()}
	}
}

// place returns where the code panicked, as " at file:line", or "" if that is unknown. It skips
// the runtime's frames.
func place() string {
	// A panic's own frames are at the top. 16 are enough to get below them.
	var pcs [16]uintptr
	// 3 skips Callers, place and Recover.
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for frame, ok := frames.Next(); ok; frame, ok = frames.Next() {
		if !strings.HasPrefix(frame.Function, "runtime.") && !strings.HasPrefix(frame.Function, "internal/runtime/") {
			return fmt.Sprintf(" at %s:%d", filepath.Base(frame.File), frame.Line)
		}
	}
	return ""
}

// Contain runs f on the caller's goroutine. It returns an [Error] with the panic's value if f
// panics, and otherwise nil.
func Contain(f func()) (err error) {
	defer Recover(&err)
	f()
	return nil
}

// Do calls f and returns its error. If f panics, Do returns an error that wraps an [Error]. The
// text of this error begins with name.
func Do(name string, f func() error) (err error) {
	if panicked := Contain(func() { err = f() }); panicked != nil {
		return fmt.Errorf("%s: %w", name, panicked)
	}
	return err
}

// Observer is told when the observed response or stream ends.
type Observer interface{ End(err error) }

// End calls End of all observers in order, with err. If an observer panics, End still calls
// the other observers before the panic continues.
func End[O Observer](observers []O, err error) {
	next := 0
	// Deferred, so that it also runs if an observer panics.
	defer func() {
		if next < len(observers) {
			End(observers[next+1:], err)
		}
	}()
	for ; next < len(observers); next++ {
		observers[next].End(err)
	}
}
