package layer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var errOver = errors.New("the limit is over")

// pair is a context of ours beside one of package context that it must equal.
type pair struct{ ours, theirs context.Context }

// differs says how the two differ to somebody who looks at them now.
func (p pair) differs() string {
	_, oursDone := recvNow(p.ours.Done())
	_, theirsDone := recvNow(p.theirs.Done())
	ours := fmt.Sprint(oursDone, p.ours.Err(), context.Cause(p.ours), p.ours.Value(expiryKey{}))
	theirs := fmt.Sprint(theirsDone, p.theirs.Err(), context.Cause(p.theirs), p.theirs.Value(expiryKey{}))
	if ours != theirs {
		return fmt.Sprintf("ours: %s, theirs: %s", ours, theirs)
	}
	return p.deadlineDiffers()
}

func (p pair) deadlineDiffers() string {
	ours, has := p.ours.Deadline()
	theirs, have := p.theirs.Deadline()
	if has != have || !ours.Equal(theirs) {
		return fmt.Sprintf("our deadline: %v %v, theirs: %v %v", ours, has, theirs, have)
	}
	return ""
}

// peek looks without arming an expiry.
func (p pair) peek() string {
	ours := fmt.Sprint(p.ours.Err(), context.Cause(p.ours))
	theirs := fmt.Sprint(p.theirs.Err(), context.Cause(p.theirs))
	if ours != theirs {
		return fmt.Sprintf("ours: %s, theirs: %s", ours, theirs)
	}
	return p.deadlineDiffers()
}

func recvNow(c <-chan struct{}) (struct{}, bool) {
	select {
	case v := <-c:
		return v, true
	default:
		return struct{}{}, false
	}
}

type expiryKey struct{}

type expiryStep struct{ kind, n int }

type expiryCase struct {
	kind   expiryKind
	parent int // which kind of parent
	after  int // milliseconds
	early  bool
	steps  []expiryStep
}

// Beside context.WithTimeoutCause, under parents of every kind, with children
// of every kind, through random ends and waits.
func TestExpiryIsAContextWithTimeout(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) expiryStep {
		return expiryStep{kind: rapid.IntRange(0, 8).Draw(rt, "kind"), n: rapid.IntRange(1, 20).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		c := expiryCase{
			kind:   rapid.SampledFrom([]expiryKind{hard, byHand}).Draw(rt, "mode"),
			parent: rapid.IntRange(0, 4).Draw(rt, "parent"),
			after:  rapid.IntRange(-1, 40).Draw(rt, "after"),
			early:  rapid.Bool().Draw(rt, "Done at once"),
			steps:  rapid.SliceOfN(step, 1, 20).Draw(rt, "steps"),
		}
		var failure string
		synctest.Test(t, func(*testing.T) { failure = driveExpiry(c) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

func driveExpiry(c expiryCase) string {
	type ends struct{ ours, theirs func(error) }
	root, endRoot := context.WithCancelCause(context.WithValue(context.Background(), expiryKey{}, "value"))
	defer endRoot(nil)
	parent := pair{root, root}
	endParent := endRoot
	switch c.parent {
	case 1: // a sooner deadline, or a later one; never at the same time
		ctx, cancel := context.WithTimeoutCause(root, 20*time.Millisecond+time.Microsecond, errors.New("the parent's limit is over"))
		defer cancel()
		parent = pair{ctx, ctx}
	case 2: // one of ours
		e := newTryExpiry(root, 30*time.Millisecond+time.Microsecond, errors.New("the parent's limit is over"))
		defer e.End(nil)
		parent, endParent = pair{e, e}, e.cancel
	case 3:
		ctx := context.WithValue(root, expiryKey{}, "nearer")
		parent = pair{ctx, ctx}
	case 4:
		parent, endParent = pair{context.Background(), context.Background()}, func(error) {}
	}
	after := time.Duration(c.after) * time.Millisecond
	e := new(expiry)
	e.init(parent.ours, after, errOver, c.kind)
	defer e.End(nil)
	above, endAbove := context.WithCancelCause(parent.theirs)
	defer endAbove(nil)
	theirs := above
	if c.after > 0 {
		var cancel context.CancelFunc
		theirs, cancel = context.WithTimeoutCause(above, after, errOver)
		defer cancel()
	}
	nodes := []pair{{e, theirs}}
	cuts := []ends{}
	if c.kind == byHand {
		cuts = append(cuts, ends{e.cancel, endAbove})
	} else {
		cuts = append(cuts, ends{func(error) { e.End(nil) }, func(error) { endAbove(nil) }})
	}
	if c.early {
		e.Done()
	}
	for i, s := range c.steps {
		at := nodes[s.n%len(nodes)]
		switch s.kind {
		case 0, 1:
			time.Sleep(time.Duration(s.n) * time.Millisecond)
		case 2:
			endParent(fmt.Errorf("parent ended in step %d", i))
		case 3:
			why := fmt.Errorf("cut in step %d", i)
			cut := cuts[s.n%len(cuts)]
			cut.ours(why)
			cut.theirs(why)
		case 4:
			nodes = append(nodes, pair{context.WithValue(at.ours, expiryKey{}, i), context.WithValue(at.theirs, expiryKey{}, i)})
		case 5:
			a, endA := context.WithCancelCause(at.ours)
			b, endB := context.WithCancelCause(at.theirs)
			defer endA(nil)
			defer endB(nil)
			nodes, cuts = append(nodes, pair{a, b}), append(cuts, ends{endA, endB})
		case 6:
			why := fmt.Errorf("limit of step %d is over", i)
			limit := time.Duration(s.n)*time.Millisecond + time.Duration(i+2)*time.Microsecond
			a, endA := context.WithTimeoutCause(at.ours, limit, why)
			b, endB := context.WithTimeoutCause(at.theirs, limit, why)
			defer endA()
			defer endB()
			nodes = append(nodes, pair{a, b})
		case 7:
			nodes = append(nodes, pair{afterFunc(at.ours), afterFunc(at.theirs)})
		case 8:
			a, b := context.WithoutCancel(at.ours), context.WithoutCancel(at.theirs)
			if a.Err() != nil || context.Cause(a) != nil || a.Value(expiryKey{}) != b.Value(expiryKey{}) {
				return "WithoutCancel did not cut it off"
			}
		}
		synctest.Wait()
		for n, p := range nodes {
			diff := p.peek()
			if c.early || n > 0 {
				diff = p.differs()
			}
			if diff != "" {
				return fmt.Sprintf("after step %d, node %d: %s", i, n, diff)
			}
		}
	}
	synctest.Wait()
	for n, p := range nodes {
		if diff := p.differs(); diff != "" {
			return fmt.Sprintf("at the end, node %d: %s", n, diff)
		}
	}
	return ""
}

// afterFunc is a context that ends when context.AfterFunc says that ctx has.
func afterFunc(ctx context.Context) context.Context {
	told, tell := context.WithCancelCause(context.Background())
	context.AfterFunc(ctx, func() { tell(context.Cause(ctx)) })
	return context.WithValue(told, expiryKey{}, "told")
}

// A parent's end is seen below at once, as that of package context is: not
// when another goroutine comes to it.
func TestExpiryEndsWithItsParentAtOnce(t *testing.T) {
	for name, child := range map[string]func(context.Context) context.Context{
		"itself": func(ctx context.Context) context.Context { return ctx },
		"value":  func(ctx context.Context) context.Context { return context.WithValue(ctx, expiryKey{}, 1) },
		"cancel": func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(context.WithValue(ctx, expiryKey{}, 1))
			t.Cleanup(cancel)
			return ctx
		},
		"expiry": func(ctx context.Context) context.Context { return newExpiry(ctx, time.Hour, errOver) },
	} {
		t.Run(name, func(t *testing.T) {
			parent, cancel := context.WithCancelCause(t.Context())
			e := newExpiry(parent, time.Minute, errOver)
			defer e.End(nil)
			ctx := child(e)
			select {
			case <-ctx.Done():
				t.Fatal("ended before its time")
			default:
			}
			gone := errors.New("gone")
			cancel(gone)
			select {
			case <-ctx.Done():
			default:
				t.Error("the parent has ended")
			}
			assert.Equal(t, context.Canceled, ctx.Err())
			assert.Equal(t, gone, context.Cause(ctx))
		})
	}
}

func TestExpiryOfWhichNobodyAskedIsOneAllocation(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sink context.Context
	allocs := testing.AllocsPerRun(100, func() {
		e := newExpiry(parent, time.Minute, errOver)
		sink = e
		_ = e.Err()
		_ = e.Value(expiryKey{})
		_, _ = e.Deadline()
		e.End(nil)
	})
	require.LessOrEqual(t, allocs, 1.0)
	require.ErrorIs(t, sink.Err(), context.Canceled)
	require.Equal(t, context.Canceled, context.Cause(sink))
}

// No timer outlives the release: our own is stopped, and that of package
// context with its context.
func TestExpiryLeavesNoTimer(t *testing.T) {
	for _, kind := range []expiryKind{hard, byHand, soft} {
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, let := range []func(*expiry){
			func(e *expiry) { e.End(nil) },
			func(e *expiry) { e.cancel(errOver) },
			func(*expiry) { cancel() },
		} {
			e := new(expiry)
			e.init(parent, time.Minute, errOver, kind)
			child, stop := context.WithCancel(e)
			let(e)
			require.ErrorIs(t, child.Err(), context.Canceled)
			require.Error(t, e.real.Err())
			e.End(nil)
			if kind == soft {
				require.False(t, e.timer.Stop(), "it was still running")
			}
			stop()
		}
	}
}

func TestExpiryStartsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		before := runtime.NumGoroutine()
		for range 100 {
			e := newExpiry(parent, time.Minute, errOver)
			defer e.End(nil)
			_, stop := context.WithTimeout(context.WithValue(e, expiryKey{}, 1), time.Second)
			defer stop()
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
	})
}

// What was first is first, even when nobody looked in time, wherever it can be
// known.
func TestExpiryTellsWhatWasFirst(t *testing.T) {
	theirs := errors.New("the parent's limit is over")
	for name, tt := range map[string]struct {
		parent time.Duration
		after  time.Duration
		cancel bool
		cause  error
	}{
		"ours, then the parent's": {parent: 2 * time.Second, after: time.Second, cause: errOver},
		"the parent's, then ours": {parent: time.Second, after: 2 * time.Second, cause: theirs},
		"cut by hand afterwards":  {parent: time.Hour, after: time.Second, cancel: true, cause: errOver},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root, endRoot := context.WithCancelCause(t.Context())
				defer endRoot(nil)
				parent, cancel := context.WithTimeoutCause(root, tt.parent, theirs)
				defer cancel()
				e := newTryExpiry(parent, tt.after, errOver)
				time.Sleep(3 * time.Second)
				if tt.cancel {
					e.cancel(errors.New("too late"))
					endRoot(errors.New("later still"))
				}
				assert.Equal(t, tt.cause, context.Cause(e))
				assert.Equal(t, context.DeadlineExceeded, e.Err())
				assert.Equal(t, tt.cause == errOver, e.expired())
				<-e.Done()
			})
		})
	}
}

func TestExpirySoftIsLifted(t *testing.T) {
	for _, armed := range []bool{false, true} {
		t.Run(fmt.Sprint("armed ", armed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := new(expiry)
				e.init(t.Context(), time.Second, errOver, soft)
				if armed {
					e.Done()
				}
				_, told := e.Deadline()
				require.False(t, told)
				time.Sleep(time.Second - 1)
				require.NoError(t, e.Err())
				require.True(t, e.lift())
				if armed {
					require.False(t, e.timer.Stop(), "it was still running")
					e.overdue() // as if it had been about to
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				require.NoError(t, e.Err())
				e.End(nil)
				require.Equal(t, context.Canceled, context.Cause(e))
			})
		})
		t.Run(fmt.Sprint("too late, armed ", armed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := new(expiry)
				e.init(t.Context(), time.Second, errOver, soft)
				if armed {
					e.Done()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				require.ErrorIs(t, e.Err(), context.Canceled)
				require.Equal(t, errOver, context.Cause(e))
				require.False(t, e.lift())
				require.True(t, e.expired())
				<-e.Done()
			})
		})
	}
}

// Everything at once, for the race detector, and one end for all who look.
func TestExpiryStorm(t *testing.T) {
	for range 200 {
		parent, cancel := context.WithCancelCause(t.Context())
		e := newTryExpiry(parent, time.Duration(50)*time.Microsecond, errOver)
		var wg sync.WaitGroup
		causes := make([]error, 4)
		for i := range causes {
			wg.Go(func() {
				child, stop := context.WithCancel(context.WithValue(e, expiryKey{}, i))
				defer stop()
				_ = e.Err()
				<-child.Done()
				causes[i] = context.Cause(e)
			})
		}
		wg.Go(func() { e.cancel(errors.New("cut")) })
		wg.Go(func() { cancel(errors.New("gone")) })
		wg.Go(func() { e.End(nil) })
		wg.Wait()
		require.Len(t, slices.Compact(causes), 1)
		require.Error(t, causes[0])
	}
}
