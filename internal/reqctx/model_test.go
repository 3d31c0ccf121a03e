package reqctx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/reqctx"
)

// pair is a context of ours beside one of package context that it must equal.
type pair struct{ ours, theirs context.Context }

// differs returns how the two differ, or "".
func (p pair) differs() string {
	_, oursDone := recvNow(p.ours.Done())
	_, theirsDone := recvNow(p.theirs.Done())
	ours := fmt.Sprint(oursDone, p.ours.Err(), context.Cause(p.ours), p.ours.Value(key{}))
	theirs := fmt.Sprint(theirsDone, p.theirs.Err(), context.Cause(p.theirs), p.theirs.Value(key{}))
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

// peek compares without activating the context.
func (p pair) peek() string {
	ours := fmt.Sprint(p.ours.Err(), reqctx.Cause(p.ours))
	theirs := fmt.Sprint(p.theirs.Err(), reqctx.Cause(p.theirs))
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

type modelStep struct{ kind, n int }

type modelCase struct {
	parent int // which kind of parent
	after  int // milliseconds
	early  bool
	steps  []modelStep
}

// Beside context.WithTimeoutCause, under parents of every kind, with children
// of every kind, through random ends and waits.
func TestContextModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) modelStep {
		return modelStep{kind: rapid.IntRange(0, 8).Draw(rt, "kind"), n: rapid.IntRange(1, 20).Draw(rt, "n")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		c := modelCase{
			parent: rapid.IntRange(0, 4).Draw(rt, "parent"),
			after:  rapid.IntRange(-1, 40).Draw(rt, "after"),
			early:  rapid.Bool().Draw(rt, "Done at once"),
			steps:  rapid.SliceOfN(step, 1, 20).Draw(rt, "steps"),
		}
		var failure string
		synctest.Test(t, func(*testing.T) { failure = driveModel(c) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

func driveModel(c modelCase) string {
	type ends struct{ ours, theirs func(error) }
	root, endRoot := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
	defer endRoot(nil)
	parent := pair{root, root}
	endParent := endRoot
	switch c.parent {
	case 1: // a sooner deadline, or a later one; never at the same time
		ctx, cancel := context.WithTimeoutCause(root, 20*time.Millisecond+time.Microsecond, errors.New("the parent's limit is over"))
		defer cancel()
		parent = pair{ctx, ctx}
	case 2: // one of ours
		e := reqctx.New(root, 30*time.Millisecond+time.Microsecond, errors.New("the parent's limit is over"))
		defer e.Cancel(nil)
		parent, endParent = pair{e, e}, e.Cancel
	case 3:
		ctx := context.WithValue(root, key{}, "nearer")
		parent = pair{ctx, ctx}
	case 4:
		parent, endParent = pair{context.Background(), context.Background()}, func(error) {}
	}
	after := time.Duration(c.after) * time.Millisecond
	e := reqctx.New(parent.ours, after, errLimit)
	defer e.Cancel(nil)
	above, endAbove := context.WithCancelCause(parent.theirs)
	defer endAbove(nil)
	theirs := above
	if c.after > 0 {
		var cancel context.CancelFunc
		theirs, cancel = context.WithTimeoutCause(above, after, errLimit)
		defer cancel()
	}
	nodes := []pair{{e, theirs}}
	cuts := []ends{{e.Cancel, endAbove}}
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
			nodes = append(nodes, pair{context.WithValue(at.ours, key{}, i), context.WithValue(at.theirs, key{}, i)})
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
			if a.Err() != nil || context.Cause(a) != nil || a.Value(key{}) != b.Value(key{}) {
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

// afterFunc is a context that ends when context.AfterFunc reports the end of ctx.
func afterFunc(ctx context.Context) context.Context {
	derived, tell := context.WithCancelCause(context.Background())
	context.AfterFunc(ctx, func() { tell(context.Cause(ctx)) })
	return context.WithValue(derived, key{}, "derived")
}

// The first cause stays, also if the context was not active at that time.
func TestContextFirstCause(t *testing.T) {
	theirs := errors.New("the parent's limit is over")
	for name, tt := range map[string]struct {
		parent time.Duration
		after  time.Duration
		cancel bool
		cause  error
	}{
		"ours, then the parent's": {parent: 2 * time.Second, after: time.Second, cause: errLimit},
		"the parent's, then ours": {parent: time.Second, after: 2 * time.Second, cause: theirs},
		"cut by hand afterwards":  {parent: time.Hour, after: time.Second, cancel: true, cause: errLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root, endRoot := context.WithCancelCause(t.Context())
				defer endRoot(nil)
				parent, cancel := context.WithTimeoutCause(root, tt.parent, theirs)
				defer cancel()
				e := reqctx.New(parent, tt.after, errLimit)
				time.Sleep(3 * time.Second)
				if tt.cancel {
					e.Cancel(errors.New("too late"))
					endRoot(errors.New("later still"))
				}
				assert.Equal(t, tt.cause, context.Cause(e))
				assert.Equal(t, context.DeadlineExceeded, e.Err())
				assert.Equal(t, tt.cause == errLimit, e.Expired())
				<-e.Done()
			})
		})
	}
}

// Concurrent ends give one cause to all observers.
func TestContextRace(t *testing.T) {
	for range 200 {
		parent, cancel := context.WithCancelCause(t.Context())
		e := reqctx.New(parent, time.Duration(50)*time.Microsecond, errLimit)
		var wg sync.WaitGroup
		causes := make([]error, 4)
		for i := range causes {
			wg.Go(func() {
				child, stop := context.WithCancel(context.WithValue(e, key{}, i))
				defer stop()
				_ = e.Err()
				<-child.Done()
				causes[i] = context.Cause(e)
			})
		}
		wg.Go(func() { e.Cancel(errors.New("cut")) })
		wg.Go(func() { cancel(errors.New("gone")) })
		wg.Go(func() { e.Cancel(nil) })
		wg.Wait()
		require.Len(t, slices.Compact(causes), 1)
		require.Error(t, causes[0])
	}
}
