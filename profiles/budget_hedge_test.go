package profiles_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// fickle is a target that is slow, fails, and refuses, and notes when it was
// asked for the first time for a request, and when again.
type fickle struct {
	mu    sync.Mutex
	dice  *rand.Rand
	came  map[string]bool // requests, by path
	first []time.Time     // when they had been answered, which is when they pay
	again []time.Time
}

func (f *fickle) roll(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dice.IntN(n)
}

func (f *fickle) Ready(context.Context) error { return nil }

func (f *fickle) Call(ctx context.Context, req request) (*reply, error) {
	switch f.roll(16) {
	case 0:
		return nil, &layer.Error{Layer: "queue", Kind: layer.ErrNotReady}
	case 1:
		after := time.Duration(f.roll(3)) * time.Millisecond
		return nil, &layer.Error{Layer: "endpoint", Kind: layer.ErrNotReady, Err: errPeer, RetryAfter: after}
	case 2:
		return nil, &layer.Error{Layer: "endpoint", Kind: layer.ErrFailFast, Err: errPeer}
	}
	f.mu.Lock()
	first := !f.came[req.path]
	f.came[req.path] = true
	if !first {
		f.again = append(f.again, time.Now())
	}
	f.mu.Unlock()
	if first {
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.first = append(f.first, time.Now())
		}()
	}
	if f.roll(3) == 0 {
		slow := time.NewTimer(time.Duration(f.roll(30)) * time.Millisecond)
		defer slow.Stop()
		select {
		case <-slow.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	switch f.roll(4) {
	case 0:
		return nil, errPeer
	case 1:
		return &reply{status: 200}, nil
	}
	return &reply{status: 503}, nil
}

// check holds every ttl that ends with a retry or a copy to the budget.
func (f *fickle) check(t *testing.T, b profiles.RetryBudget) {
	t.Helper()
	within := func(times []time.Time, end time.Time) (n int) {
		for _, at := range times {
			if !at.After(end) && at.After(end.Add(-b.TTL)) {
				n++
			}
		}
		return n
	}
	for _, end := range f.again {
		allowed := b.Ratio*float64(within(f.first, end)) + float64(b.MinPerSecond)*b.TTL.Seconds()
		if !assert.LessOrEqual(t, float64(within(f.again, end)), allowed) {
			return
		}
	}
}

// All retries and hedges share one budget, which is never exceeded with rejections,
// canceled callers and changing profiles. Everything that began has ended.
func TestBudgetOfRetriesAndHedges(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stormBudget(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func stormBudget(t *testing.T, dice *rand.Rand) {
	t.Helper()
	b := profiles.RetryBudget{
		Ratio: []float64{0, 0.1, 0.5, 1, 2}[dice.IntN(5)], MinPerSecond: dice.Uint32N(4), TTL: time.Duration(1+dice.IntN(3)) * time.Second,
	}
	route := profiles.Route{
		Match: profiles.All{}, Hedge: time.Duration(dice.IntN(2)) * 5 * time.Millisecond,
		AttemptTimeout: time.Duration(dice.IntN(2)) * 20 * time.Millisecond,
	}
	if dice.IntN(2) == 0 {
		route.Retry = &profiles.Retry{}
	}
	f := &fickle{dice: dice, came: make(map[string]bool)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var source profiles.Static
	set := func(i int) {
		budget, route := b, route
		route.Labels = map[string]string{"i": strconv.Itoa(i)}
		p := &profiles.Profile{Routes: []profiles.Route{route}, RetryBudget: &budget}
		if i%2 == 1 {
			p.Targets = []profiles.Target{{"a:80", 1}, {"b:80", 2}}
		}
		source.Set(target, p)
	}
	set(0)
	var counts tallies
	config := profiles.Config{Target: target, Source: &source, Metrics: counts.instruments, InitialWait: time.Second}
	r := profiles.New(ctx, config, access{}, func(string) service { return f }, standard())
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			for j := range 30 {
				ctx, done := context.WithCancel(ctx)
				if f.roll(5) == 0 {
					time.AfterFunc(time.Duration(f.roll(20))*time.Millisecond, done)
				}
				_, _ = r.Call(ctx, request{method: "GET", path: fmt.Sprintf("/%d/%d", i, j)})
				done()
				time.Sleep(time.Duration(max(f.roll(300)-200, 0)) * time.Millisecond)
			}
		})
	}
	for i := range 10 {
		time.Sleep(100 * time.Millisecond)
		set(i + 1)
	}
	group.Wait()
	synctest.Wait()
	f.check(t, b)
	counts.balanced(t)
	assert.EqualValues(t, len(f.first)+len(f.again), counts.of("tries"))
}
