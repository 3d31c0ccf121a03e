package layertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Run runs the invariants of the package documentation against s. Each is a
// sub-test with its number in the name, in its own testing/synctest bubble. An
// invariant that does not apply to s is skipped, with the reason.
//
// A subject that leaves goroutines blocked ends the test program with the
// bubble's panic, after the failure was reported. One that never comes to rest
// ends it with a panic after two minutes, and 10 ms more for each request that
// Limit and Queue hold: a goroutine that spins, or that blocks on something
// that is not durable in a bubble, such as a mutex, I/O, or a channel made
// outside.
func Run(t *testing.T, s Spec) {
	t.Helper()
	if s == nil {
		t.Fatal("the spec is nil")
	}
	s.conform(t)
}

// check is one invariant. Its function returns the violation.
type check[Req, Rsp any] struct {
	number int
	phrase string
	run    func(env[Req, Rsp]) error
	skip   func(declared) string // why it says nothing of such a subject
}

// checks returns the invariants by their number: 0 is from design.md §2, the
// others are those of readiness.md §7. 21 and 22 speak of balancers and
// clocks, and are proved where those are.
func checks[Req, Rsp any]() []check[Req, Rsp] {
	return []check[Req, Rsp]{
		{0, "Ready looks at capacity before ctx", readyPolls[Req, Rsp], nil},
		{1, "safe for a thousand goroutines", storm[Req, Rsp], nil},
		{2, "Ready reserves nothing", readyReserves[Req, Rsp], nil},
		{3, "capacity wakes every waiting Ready", readyWakes[Req, Rsp], unfilled},
		{4, "a done ctx ends the wait with its cause", doneReturns[Req, Rsp], unfilled},
		{5, "a done ctx reaches nothing", doneRefused[Req, Rsp], nil},
		{6, "saturation rejects without waiting", saturationRefuses[Req, Rsp], unfilled},
		{7, "a rejection leaves the request untouched", refusalUntouched[Req, Rsp], nil},
		{8, "never more in flight than the limit", peakWithinLimit[Req, Rsp], opaque},
		{9, "all capacity comes back", conserved[Req, Rsp], nil},
		{10, "first in, first out", fifo[Req, Rsp], unqueued},
		{11, "a canceled waiter takes no other turn", leaverHarmless[Req, Rsp], unfilled},
		{12, "wake-ups are bounded", wakesBounded[Req, Rsp], opaque},
		{13, "closed is final", closedSticky[Req, Rsp], unclosed},
		{14, "a response ends exactly once", endsOnce[Req, Rsp], nil},
		{15, "the inner ctx lives until the body is closed", ctxOutlives[Req, Rsp], opaqueOrBare},
		{16, "of several attempts one counts, and ends the others", triesEnd[Req, Rsp], once},
		{17, "errors and panics pass", errorsPass[Req, Rsp], opaque},
		{18, "the inner deadline is at most the outer", deadlineKept[Req, Rsp], opaque},
		{19, "Ready is forwarded and transparent costs nothing", forwards[Req, Rsp], opaque},
		{20, "making it does nothing", makingInert[Req, Rsp], nil},
	}
}

func opaque(d declared) string {
	if !d.layer {
		return "a service has no inner service"
	}
	return ""
}

func opaqueOrBare(d declared) string {
	if !d.bodies {
		return "responses have no body"
	}
	return opaque(d)
}

func once(d declared) string {
	if d.tries == 1 {
		return "it sends a request once (Tries)"
	}
	return ""
}

func unfilled(d declared) string {
	if !d.fills {
		return "it declares no way to fill it (Fill)"
	}
	return ""
}

func unqueued(d declared) string {
	if d.queue == 0 {
		return "it declares no Queue"
	}
	return ""
}

func unclosed(d declared) string {
	if !d.closes {
		return "it declares no end (Close), or one of its own (Outlives)"
	}
	return ""
}

func run[Req, Rsp any](t *testing.T, s *subject[Req, Rsp]) {
	for _, c := range checks[Req, Rsp]() {
		t.Run(c.name(), func(t *testing.T) {
			if c.skip != nil {
				if reason := c.skip(s.declared); reason != "" {
					t.Skip(reason)
				}
			}
			if s.buried && slices.Contains([]int{3, 7, 13, 17, 19}, c.number) {
				t.Skip("what inner refuses waits below the limit")
			}
			defer watch(c.name(), s.declared)()
			synctest.Test(t, func(t *testing.T) {
				if err := c.verify(s); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func (c check[Req, Rsp]) name() string { return fmt.Sprintf("%02d %s", c.number, c.phrase) }

// attempt makes an error of what only the use of a spec has shown.
func (c check[Req, Rsp]) attempt(e env[Req, Rsp]) (err error) {
	defer func() {
		if e.away.fault != nil {
			_ = recover() // no other panic: its stack is of use
			err = e.away.fault
		}
	}()
	return c.run(e)
}

// verify runs the check. It must be called in a bubble.
func (c check[Req, Rsp]) verify(s *subject[Req, Rsp]) error {
	before := goroutines()
	ctx, cancel := context.WithCancelCause(context.Background())
	e := env[Req, Rsp]{s, ctx, &away{inner: make(map[allower]bool)}}
	err := c.attempt(e)
	if err == nil {
		err = e.away.stayAway()
	}
	cancel(errOver)
	if left := s.leftSince(before); err == nil {
		err = left
	}
	// Remaining goroutines may wait for time only; without this sleep they
	// would end the program.
	time.Sleep(2 * time.Minute)
	return err
}
