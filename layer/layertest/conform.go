package layertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Run checks the invariants in the package documentation against s. Each invariant is a subtest
// in a testing/synctest bubble. If an invariant does not apply to s, its subtest is skipped, with
// the reason.
//
// If the subject of s leaks blocked goroutines, the bubble panics and ends the test program after the
// failure was reported. If it spins, the test runs until go test's timeout, which prints the
// stacks. The same happens if the subject blocks on a mutex, on I/O, or on a channel made outside
// of the bubble.
func Run(t *testing.T, s Spec) {
	t.Helper()
	if s == nil {
		t.Fatal("the spec is nil")
	}
	s.conform(t)
}

// check is one invariant. run panics with a violation if the subject violates it.
type check[Req, Rsp any] struct {
	number int
	title  string
	run    func(env[Req, Rsp])
}

// checks returns the invariants in the package documentation, in the order of their numbers.
func checks[Req, Rsp any]() []check[Req, Rsp] {
	return []check[Req, Rsp]{
		{1, "Ready looks at capacity before ctx", readyPolls[Req, Rsp]},
		{2, "safe for a thousand goroutines", storm[Req, Rsp]},
		{3, "Ready reserves nothing", readyReserves[Req, Rsp]},
		{4, "capacity wakes every waiting Ready", readyWakes[Req, Rsp]},
		{5, "a done ctx ends the wait with its cause", doneReturns[Req, Rsp]},
		{6, "a done ctx reaches nothing", doneRejects[Req, Rsp]},
		{7, "saturation rejects without waiting", saturationRejects[Req, Rsp]},
		{8, "the limit holds and all capacity comes back", capacityKept[Req, Rsp]},
		{9, "first in, first out", fifo[Req, Rsp]},
		{10, "a canceled waiter takes no capacity", cancelHarmless[Req, Rsp]},
		{11, "wake-ups are bounded", wakeUpsBounded[Req, Rsp]},
		{12, "closed is final", closedFinal[Req, Rsp]},
		{13, "a response ends once and its ctx not before", endsOnce[Req, Rsp]},
		{14, "attempts are bounded and end with the call", attemptsEnd[Req, Rsp]},
		{15, "errors and panics pass", errorsPass[Req, Rsp]},
		{16, "the inner deadline is at most the outer", deadlineKept[Req, Rsp]},
		{17, "transparent costs nothing", transparencyKept[Req, Rsp]},
		{18, "making it does nothing", inert[Req, Rsp]},
	}
}

// skips returns the reason why the check does not apply to s, or "" if it applies.
func (c check[Req, Rsp]) skips(s *subject[Req, Rsp]) string {
	// The numbers are those in the list of checks above.
	isCheck := func(numbers ...int) bool { return slices.Contains(numbers, c.number) }
	switch {
	case isCheck(11, 15, 16, 17) && !s.isLayer():
		return "a service has no inner service"
	case isCheck(4, 5, 7, 10) && !s.fills:
		return "it declares no way to fill it (Fill)"
	case isCheck(9) && s.Queue == 0:
		return "it declares no Queue"
	case isCheck(12) && !s.closes:
		return "the checks cannot close it (Close, OutlivesInner)"
	case isCheck(14) && s.MaxAttempts == 1:
		return "it sends a request once (MaxAttempts)"
	case isCheck(4, 12, 15) && s.QueueBelow:
		return "requests that inner rejects wait below the limit"
	}
	return ""
}

func (c check[Req, Rsp]) name() string { return fmt.Sprintf("%02d %s", c.number, c.title) }

// run runs all checks as subtests, each in a bubble of package synctest, which makes time virtual.
func run[Req, Rsp any](t *testing.T, validate func() (*subject[Req, Rsp], error)) {
	s, err := validate()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks[Req, Rsp]() {
		t.Run(c.name(), func(t *testing.T) {
			if reason := c.skips(s); reason != "" {
				t.Skip(reason)
			}
			synctest.Test(t, func(t *testing.T) {
				if err := c.verify(s); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// verify runs the check in the current bubble. It then checks that the rejected requests were
// neither changed nor served later, and looks for leaked goroutines.
func (c check[Req, Rsp]) verify(s *subject[Req, Rsp]) error {
	baseline := goroutines()
	ctx, cancel := context.WithCancelCause(context.Background())
	e := env[Req, Rsp]{s, ctx, &rejected[Req, Rsp]{}}
	err := violationOf(func() { c.run(e) })
	if err == nil {
		err = e.rejected.checkAgain()
	}
	cancel(errCheckDone)
	if leak := checkLeaks(baseline, s.background); err == nil {
		err = leak
	}
	// Remaining goroutines that wait only for time would end the program.
	time.Sleep(2 * time.Minute)
	return err
}

// violation is the value, with the reason, of the panic that ends a check.
type violation struct{ err error }

// failf ends the check with a violation. The function violationOf returns it.
func failf(format string, args ...any) { panic(violation{fmt.Errorf(format, args...)}) }

// must ends the check with the violation err, unless err is nil.
func must(err error) {
	if err != nil {
		panic(violation{err})
	}
}

// mustf ends the check with the violation err, unless err is nil, like must. The formatted text, which says what was
// checked, comes before the text of err.
func mustf(err error, format string, args ...any) {
	if err != nil {
		failf(format+": %w", append(args, err)...)
	}
}

// violationOf runs f. It returns the violation with which f ended, or nil. Other panics continue.
func violationOf(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			err = v.err
		default:
			panic(v)
		}
	}()
	f()
	return nil
}
