package profiles_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// split returns a profile that uses the available ones of targets, as linkerd does.
func split(targets ...profiles.Target) *profiles.Profile {
	return &profiles.Profile{Targets: targets, Distribution: profiles.RandomAvailable}
}

// shares sends n requests and checks that each authority got its share of
// them, within six standard deviations.
func shares(t *testing.T, r service, bs *backends, n int, want map[string]float64) {
	t.Helper()
	before := bs.calls()
	for range n {
		send(t, r, "GET", "/")
	}
	after := bs.calls()
	for authority, share := range want {
		tolerance := 6 * math.Sqrt(float64(n)*share*(1-share))
		assert.InDelta(t, float64(n)*share, after[authority]-before[authority], tolerance, authority)
	}
	for authority := range after {
		if _, wanted := want[authority]; !wanted {
			assert.Equal(t, before[authority], after[authority], "%s has no share", authority)
		}
	}
}

// TestSplit has the rules of weights.
func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		what    string
		profile *profiles.Profile
		want    map[string]float64
	}{
		{"empty: apex", split(), map[string]float64{target: 1}},
		{"all weights 0: apex", split(profiles.Target{"a:80", 0}, profiles.Target{"b:80", 0}), map[string]float64{target: 1}},
		{"all invalid: apex", split(profiles.Target{"", 1}, profiles.Target{"", 2}), map[string]float64{target: 1}},
		{
			"all invalid: the apex of a named profile",
			&profiles.Profile{Name: "web.local", Targets: []profiles.Target{{"", 1}}},
			map[string]float64{"web.local:80": 1},
		},
		{"exactly 1: all of it", split(profiles.Target{"a:80", 1}), map[string]float64{"a:80": 1}},
		{"weight 0 gets none", split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 0}), map[string]float64{"a:80": 1}},
		{"invalid gets none", split(profiles.Target{"a:80", 1}, profiles.Target{"", 9}), map[string]float64{"a:80": 1}},
		{
			"keys of any form", split(profiles.Target{"default/backend/rule/0", 1}, profiles.Target{"outbound|80||web", 1}, profiles.Target{"10.0.0.1:80", 2}),
			map[string]float64{"default/backend/rule/0": 0.25, "outbound|80||web": 0.25, "10.0.0.1:80": 0.5},
		},
		{"by weight", split(profiles.Target{"a:80", 90}, profiles.Target{"b:80", 10}), map[string]float64{"a:80": 0.9, "b:80": 0.1}},
		{
			"several", split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 2}, profiles.Target{"c:80", 5}),
			map[string]float64{"a:80": 0.125, "b:80": 0.25, "c:80": 0.625},
		},
		{
			"the same one twice", split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 2}, profiles.Target{"a:80", 1}),
			map[string]float64{"a:80": 0.5, "b:80": 0.5},
		},
		{
			"great weights", split(profiles.Target{"a:80", math.MaxUint32}, profiles.Target{"b:80", math.MaxUint32}),
			map[string]float64{"a:80": 0.5, "b:80": 0.5},
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			var bs backends
			shares(t, routerOf(t, tt.profile, &bs), &bs, 4000, tt.want)
		})
	}
}

// With FixedShares, the share of a target that is not ready or that rejects requests is not given
// to the others.
func TestSplitFixedShares(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Targets: two}, &bs)
	a, b := bs.get(t, "a:80"), bs.get(t, "b:80")
	half := func(failed *backend) {
		t.Helper()
		const n = 2000
		failures := 0
		for range n {
			if _, err := r.Call(t.Context(), request{}); err != nil {
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.NotErrorIs(t, err, layer.ErrClosed, "the other target is open")
				failures++
			}
		}
		assert.InDelta(t, n/2, failures, 6*math.Sqrt(n)/2)
		assert.EqualValues(t, failures, failed.refused.Swap(0))
	}
	a.refusing.Store(true)
	half(a)
	a.refusing.Store(false)
	b.closed.Store(true)
	half(b)
	b.closed.Store(false)
	a.unready.Store(true)
	half(a)
}

func TestSplitFixedSharesClosed(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(&profiles.Profile{Targets: two}, nil)
	src.end()
	bs.get(t, "a:80").closed.Store(true)
	bs.get(t, "b:80").closed.Store(true)
	require.Eventually(t, func() bool { // until the Router has received the end of the profiles
		_, err := r.Call(t.Context(), request{})
		return errors.Is(err, layer.ErrClosed)
	}, time.Minute, time.Millisecond)
}

var three = split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 2}, profiles.Target{"c:80", 5})

// random_available of spec's "distribute": by weight and availability.
func TestSplitSkipsUnreadyTargets(t *testing.T) {
	var bs backends
	r := routerOf(t, three, &bs)
	a, b, c := bs.get(t, "a:80"), bs.get(t, "b:80"), bs.get(t, "c:80")

	c.unready.Store(true)
	shares(t, r, &bs, 4000, map[string]float64{"a:80": 1.0 / 3, "b:80": 2.0 / 3})
	c.unready.Store(false)
	b.unready.Store(true)
	shares(t, r, &bs, 4000, map[string]float64{"a:80": 1.0 / 6, "c:80": 5.0 / 6})
	a.unready.Store(true)
	shares(t, r, &bs, 100, map[string]float64{"c:80": 1})
	a.unready.Store(false)
	b.unready.Store(false)
	shares(t, r, &bs, 4000, map[string]float64{"a:80": 0.125, "b:80": 0.25, "c:80": 0.625})
	assert.Zero(t, a.refused.Load()+b.refused.Load()+c.refused.Load(), "those that were not ready were not asked")
}

func TestSplitPollsOneOfReadyTargets(t *testing.T) {
	var bs backends
	r := routerOf(t, three, &bs)
	for range 100 {
		send(t, r, "GET", "/")
	}
	var polled int64
	for _, b := range bs.made {
		polled += b.polled.Load()
	}
	assert.EqualValues(t, 100, polled)
}

// If no target is ready, the split draws from all targets. The request then waits for the drawn one.
func TestSplitWithoutReadyTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := make(map[string]int)
		bs := backends{}
		mk := func(authority string) service {
			return queue{bs.mk(authority).(*backend), func() { first[authority]++ }}
		}
		src := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, mk)
		src.send(three, nil)
		a, b, c := bs.get(t, "a:80"), bs.get(t, "b:80"), bs.get(t, "c:80")
		const n = 2000
		for range n {
			a.unready.Store(true)
			b.unready.Store(true)
			c.unready.Store(true)
			began := time.Now()
			time.AfterFunc(time.Second, func() { a.set(&a.unready, false); b.set(&b.unready, false); c.set(&c.unready, false) })
			send(t, r, "GET", "/")
			require.Equal(t, time.Second, time.Since(began))
			synctest.Wait() // until all three are set
		}
		for authority, share := range map[string]float64{"a:80": 0.125, "b:80": 0.25, "c:80": 0.625} {
			assert.InDelta(t, n*share, first[authority], 6*math.Sqrt(n*share*(1-share)), authority)
		}
	})
}

// queue waits for its backend, as a Queue above a balancer does.
type queue struct {
	*backend
	drawn func()
}

func (q queue) Call(ctx context.Context, req request) (*reply, error) {
	q.drawn()
	if err := q.Ready(ctx); err != nil {
		return nil, err
	}
	return q.backend.Call(ctx, req)
}

func TestSplitTriesOthersAfterRejection(t *testing.T) {
	var bs backends
	r := routerOf(t, three, &bs)
	a, b, c := bs.get(t, "a:80"), bs.get(t, "b:80"), bs.get(t, "c:80")
	refused := func() int64 { return a.refused.Swap(0) + b.refused.Swap(0) + c.refused.Swap(0) }

	a.refusing.Store(true)
	c.refusing.Store(true)
	for range 100 {
		assert.Equal(t, "b:80", send(t, r, "GET", "/").from)
	}
	assert.NotZero(t, refused())

	// Ready targets come before the others.
	a.refusing.Store(false)
	a.unready.Store(true)
	for range 100 {
		assert.Equal(t, "b:80", send(t, r, "GET", "/").from)
	}
	assert.Zero(t, a.refused.Load())
	refused()

	// Every one is asked exactly once before the request is refused.
	b.refusing.Store(true)
	for range 100 {
		_, err := r.Call(t.Context(), request{})
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "profiles web:80: not ready: rejected by 3 of 3 targets: backend ")
		for _, one := range []*backend{a, b, c} {
			assert.EqualValues(t, 1, one.refused.Load(), one.authority)
		}
		refused()
	}
}

// A request gets ErrClosed only if every target is closed.
func TestSplitWithClosedTargets(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(split(two...), nil)
	src.end()
	a, b := bs.get(t, "a:80"), bs.get(t, "b:80")
	a.closed.Store(true)
	for range 50 {
		assert.Equal(t, "b:80", send(t, r, "GET", "/").from)
	}
	b.refusing.Store(true)
	for range 50 {
		_, err := r.Call(t.Context(), request{})
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
	}
	b.closed.Store(true)
	require.Eventually(t, func() bool { // until the Router has received the end of the profiles
		_, err := r.Call(t.Context(), request{})
		return errors.Is(err, layer.ErrClosed)
	}, time.Minute, time.Millisecond)
	for range 50 {
		_, err := r.Call(t.Context(), request{})
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "rejected by 2 of 2 targets")
	}
}

// After the caller canceled, no other target is called.
func TestSplitStopsAfterCancellation(t *testing.T) {
	var bs backends
	r := routerOf(t, three, &bs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	for _, authority := range []string{"a:80", "b:80", "c:80"} {
		bs.get(t, authority).serve = func(context.Context, request) (*reply, error) {
			asked++
			cancel()
			return nil, layer.ErrNotReady
		}
	}
	_, err := r.Call(ctx, request{})
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorContains(t, err, "rejected by 1 of 3 targets")
	assert.Equal(t, 1, asked)
}

// A closed target of a split does not close the split, because other targets may admit requests. The
// same holds after the last profile.
func TestSplitOneTargetClosed(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(split(two...), nil)
	src.end()
	a, b := bs.get(t, "a:80"), bs.get(t, "b:80")
	a.closed.Store(true)
	b.closed.Store(true)
	require.Eventually(t, func() bool { // until the Router has received the end of the profiles
		_, err := r.Call(t.Context(), request{})
		return errors.Is(err, layer.ErrClosed)
	}, time.Minute, time.Millisecond)
	a.closed.Store(false)
	b.closed.Store(false)
	var leave context.CancelFunc
	for _, one := range []*backend{a, b} {
		one.serve = func(context.Context, request) (*reply, error) {
			leave()
			return nil, &layer.Error{Layer: "backend", Kind: layer.ErrClosed}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	leave = cancel
	defer cancel()
	_, err := r.Call(ctx, request{})
	require.ErrorContains(t, err, "rejected by 1 of 2 targets: backend: closed")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NotErrorIs(t, err, layer.ErrClosed)
}

// A Make that has nothing for an authority.
func TestSplitWithMissingService(t *testing.T) {
	var bs backends
	logged := newLog()
	mk := func(authority string) service {
		if authority == "b:80" {
			return nil
		}
		return bs.mk(authority)
	}
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: logged.logger()}, access{}, mk)
	src.send(split(two...), nil)
	for range 50 {
		assert.Equal(t, "a:80", send(t, r, "GET", "/").from)
	}
	src.send(split(profiles.Target{"b:80", 1}), nil)
	_, err := r.Call(t.Context(), request{})
	require.ErrorIs(t, err, layer.ErrNoRoute)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NotErrorIs(t, err, layer.ErrClosed, "another profile may come")
	require.ErrorContains(t, err, "b:80")
	require.ErrorIs(t, layer.Poll(r), layer.ErrNotReady)
	require.Len(t, logged.errors("target without a service"), 1)
	src.end()
	require.ErrorIs(t, r.Ready(t.Context()), layer.ErrClosed)
}

// Backends that persist keep their services, those that come back too; a
// change of weight is immediate.
func TestSplitUpdatesKeepServices(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	for _, step := range []struct {
		profile *profiles.Profile
		want    map[string]float64
	}{
		{split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 1}), map[string]float64{"a:80": 0.5, "b:80": 0.5}},
		{split(profiles.Target{"a:80", 1}, profiles.Target{"b:80", 3}), map[string]float64{"a:80": 0.25, "b:80": 0.75}},
		{split(profiles.Target{"b:80", 1}, profiles.Target{"c:80", 1}), map[string]float64{"b:80": 0.5, "c:80": 0.5}},
		{split(), map[string]float64{target: 1}},
		{split(profiles.Target{"a:80", 1}), map[string]float64{"a:80": 1}},
	} {
		src.send(step.profile, nil)
		shares(t, r, &bs, 1000, step.want)
	}
	assert.Equal(t, map[string]int{target: 1, "a:80": 1, "b:80": 1, "c:80": 1}, bs.asked)
}
