package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/stream"
)

// puppet is a resolver that yields the messages of a channel.
type puppet chan message

func (p puppet) Resolve(ctx context.Context, _ string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		for {
			select {
			case m := <-p:
				if m.err == nil && m.ended || !yield(m.update, m.err) || m.ended {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// consumer follows a stream in a bubble.
type consumer struct {
	mu      sync.Mutex // a clock that moves on is nothing the race detector sees
	set     Set
	updates []Update
	errs    []error
	idle    int // updates that changed nothing
	ended   bool
}

func consume(ctx context.Context, r Resolver) *consumer {
	c := &consumer{}
	go func() {
		for u, err := range r.Resolve(ctx, "web") {
			c.take(u, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = true
	}()
	return c
}

func (c *consumer) take(u Update, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	c.updates = append(c.updates, u)
	if !c.set.Apply(u).HasChanges() {
		c.idle++
	}
}

// look waits until nothing moves, and returns what there is then.
func (c *consumer) look() *consumer {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := &consumer{updates: c.updates, errs: c.errs, idle: c.idle, ended: c.ended}
	now.set.state, now.set.byAddr = c.set.state, maps.Clone(c.set.byAddr)
	return now
}

// differs compares a set with a model.
func differs(s *Set, m *model) error {
	if s.State() != m.state || !slices.EqualFunc(s.Endpoints(), m.endpoints(), Endpoint.Equal) {
		return fmt.Errorf("is %v %v, not %v %v", s.State(), s.Endpoints(), m.state, m.endpoints())
	}
	return nil
}

// step is a message to a source, or time that passes.
type step struct {
	message
	wait time.Duration
}

func someSteps(sources int) *rapid.Generator[[]step] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		switch what := rapid.IntRange(0, 11).Draw(t, "what"); {
		case what == 0:
			return step{wait: time.Duration(rapid.IntRange(1, 40).Draw(t, "wait")) * time.Second}
		case what <= 2:
			err := rapid.SampledFrom([]error{errLost, stream.ErrLimit}).Draw(t, "err")
			return step{message: message{index: rapid.IntRange(0, sources-1).Draw(t, "from"), err: err}}
		case what == 3 && rapid.IntRange(0, 9).Draw(t, "final") == 0:
			m := message{index: rapid.IntRange(0, sources-1).Draw(t, "from"), err: ErrUnresolvable, ended: true}
			return step{message: m}
		}
		m := message{index: rapid.IntRange(0, sources-1).Draw(t, "from")}
		m.update.Kind = Kind(rapid.Uint8Range(1, 5).Draw(t, "kind"))
		for _, n := range rapid.SliceOfN(rapid.ByteMax(4), 0, 5).Draw(t, "hosts") {
			e := Endpoint{ID: ID{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80)}}
			m.update.Removed = append(m.update.Removed, e.Addr)
			e.Weight = uint32(m.index)
			m.update.Endpoints = append(m.update.Endpoints, e)
		}
		return step{message: m}
	}), 0, 30)
}

// mergeModel is a merge that is too simple to be wrong.
type mergeModel struct {
	sources [3]model
	over    [3]bool
	lost    [3]bool // the last word is an error
	began   time.Time
	started bool
	yielded model
	idle    int // updates that only end an error
}

// take returns how many updates there must be of what a step brought.
func (m *mergeModel) take(s step) int {
	back := false
	switch {
	case s.ended:
		m.over[s.index], back = true, true
		m.sources[s.index] = model{state: StateDoesNotExist}
	case s.err != nil:
		m.lost[s.index] = true
	case s.wait == 0:
		m.sources[s.index].apply(s.update)
		if m.sources[s.index].state != StatePending {
			back, m.lost[s.index] = m.lost[s.index], false
		}
	}
	now, ok := m.union()
	same := now.state == m.yielded.state && slices.EqualFunc(now.endpoints(), m.yielded.endpoints(), Endpoint.Equal)
	switch {
	case !ok || same && !back:
		return 0
	case same:
		m.idle++
	}
	m.yielded = now.clone()
	return 1
}

func (m *mergeModel) union() (all model, ok bool) {
	answered, absent := 0, 0
	for n := len(m.sources) - 1; n >= 0; n-- { // so that the first is applied last
		if m.sources[n].state != StatePending {
			answered++
		}
		if m.sources[n].state == StateDoesNotExist {
			absent++
		}
		all.apply(Update{Kind: Add, Endpoints: m.sources[n].endpoints()})
	}
	m.started = m.started || answered == 3 || answered > 0 && time.Since(m.began) >= 10*time.Second
	switch {
	case len(all.list) > 0:
	case absent == 3:
		all.state = StateDoesNotExist
	default:
		all.state = StateEmpty
	}
	return all, m.started
}

func checkMerge(t *testing.T, steps []step) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		puppets := []puppet{make(puppet), make(puppet), make(puppet)}
		c := consume(ctx, Merge(puppets[0], puppets[1], puppets[2]))
		m := mergeModel{began: time.Now()}
		for n, s := range steps {
			now := c.look()
			errs, updates := len(now.errs), len(now.updates)
			switch {
			case s.wait > 0:
				time.Sleep(s.wait)
			case m.over[s.index]:
				continue
			default:
				puppets[s.index] <- s.message
			}
			now = c.look()
			if s.err != nil {
				errs++
			}
			updates += m.take(s)
			if m.over == [3]bool{true, true, true} {
				if !now.ended || !errors.Is(now.errs[len(now.errs)-1], ErrUnresolvable) {
					err = fmt.Errorf("step %d: not the end: %v", n, now.errs)
				}
				return
			}
			err = errors.Join(differs(&now.set, &m.yielded), now.tidy(errs, updates, m.idle))
			if err != nil || now.ended {
				err = fmt.Errorf("step %d, ended %v: %w", n, now.ended, err)
				return
			}
		}
	})
	return err
}

// tidy checks how much there was until now: errors, updates, and those of them
// that changed nothing.
func (c *consumer) tidy(errs, updates, idle int) error {
	if len(c.errs) != errs || len(c.updates) != updates || c.idle != idle {
		return fmt.Errorf("%d errors, not %d; %d updates, not %d; %d of them changed nothing, not %d",
			len(c.errs), errs, len(c.updates), updates, c.idle, idle)
	}
	for _, e := range c.errs {
		if errors.Is(e, ErrUnresolvable) {
			return fmt.Errorf("looks final: %w", e)
		}
	}
	return nil
}

func TestMergeModel(t *testing.T) {
	steps := someSteps(3)
	rapid.Check(t, func(r *rapid.T) {
		if err := checkMerge(t, steps.Draw(r, "steps")); err != nil {
			r.Fatal(err)
		}
	})
}
