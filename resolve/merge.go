package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// mergeGrace is how long a Merge's first update waits for resolvers that have not answered.
// linkerd's proxy waits as long for its control plane.
const mergeGrace = 10 * time.Second

// Merge returns a Resolver that yields the endpoints from all rs. If several resolvers yield the
// same address, the endpoint comes from the first of them.
//
// A target exists if any resolver yields endpoints for it. Otherwise, if every resolver reports
// that the target does not exist, it does not exist. In all other cases it is empty.
// [ErrUnresolvable] counts as DoesNotExist. If all resolvers report ErrUnresolvable, the sequence
// ends. Without resolvers no target exists.
//
// The first update is yielded when all resolvers have answered, or after 10 s, so that it does not
// remove endpoints that come from slow resolvers.
//
// An error is yielded at once, with its resolver's number, counted from 1, and leaves that
// resolver's endpoints unchanged. If a resolver ends, that counts as such an error, so you should
// wrap it in [Reconnect]. The first answer after an error yields the whole set even if nothing has
// changed. The sequence ends when all resolvers have ended.
//
// [ServeStale] around a Merge takes an update from any resolver for an answer from all of them. To
// drop only the endpoints from a failing resolver, wrap each resolver in ServeStale.
func Merge(rs ...Resolver) Resolver {
	requireResolvers(rs...)
	sources := slices.Clone(rs)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) { merge(ctx, sources, target, yield) }
	})
}

// merge runs one stream of a Resolver from Merge: it reads target from all sources at once, and yields
// the updates of their union until ctx ends, all sources have ended, or the consumer breaks.
func merge(ctx context.Context, sources []Resolver, target string, yield func(Update, error) bool) {
	// All resolvers send to this one channel. The index in a message tells which one it was.
	messages := make(chan message)
	feeds := make(feeds, len(sources))
	defer feeds.close()
	for n, r := range sources {
		feeds[n] = startFeed(ctx, r, target, n, messages)
	}
	grace := time.NewTimer(mergeGrace)
	defer grace.Stop()
	state := union{sets: make([]Set, len(sources)), lost: make([]bool, len(sources)), ended: make([]error, len(sources))}
	// emit comes first, because without sources there is an answer before any message.
	for ctx.Err() == nil && state.emit(yield) {
		select {
		case <-ctx.Done():
		case <-grace.C:
			// The resolvers that are still missing count as empty from now on.
			state.started = true
		case m := <-messages:
			if !state.apply(m, yield) {
				return
			}
		}
	}
}

// union is the state of one stream of a Merge: each resolver's set, and the union of these sets that
// was yielded last. Only the stream's goroutine uses it.
type union struct {
	sets      []Set   // the set of each resolver
	lost      []bool  // whether the last item of a resolver is an error
	ended     []error // why a resolver ended, or nil
	started   bool    // whether all resolvers have answered, or mergeGrace is over
	yielded   Set     // the union that was yielded last
	recovered bool    // whether a resolver has recovered or ended since the last update
}

// apply applies the update in m to the set of the resolver that sent m, or yields the error in m.
// It returns false if the stream must end.
func (s *union) apply(m message, yield func(Update, error) bool) bool {
	if m.err == nil {
		// The caller's loop yields the resulting change with emit.
		s.update(m.index, m.update)
		return true
	}
	s.lost[m.index] = true
	err := fmt.Errorf("merge: source %d of %d: %w", m.index+1, len(s.sets), m.err)
	if !m.ended {
		return yield(Update{}, err)
	}
	s.ended[m.index] = err
	// Without a resolver that is left, nothing can change any longer.
	if !slices.Contains(s.ended, nil) {
		yield(Update{}, s.final())
		return false
	}
	if errors.Is(err, ErrUnresolvable) {
		// Counted as an answer, so that the Merge does not wait for this resolver any longer.
		s.update(m.index, Update{Kind: DoesNotExist})
		err = errors.New(err.Error()) // does not match ErrUnresolvable, because others continue
	}
	// The consumer must get an update after this error, but this resolver will send none.
	s.recovered = true
	return yield(Update{}, err)
}

// update applies u to the set of the resolver with the given index. The first answer after that
// resolver's error sets s.recovered, so that emit yields an update even if nothing has changed.
func (s *union) update(index int, u Update) {
	if d := s.sets[index].Apply(u); d.After != StatePending {
		s.recovered = s.recovered || s.lost[index]
		s.lost[index] = false
	}
}

// final returns the error that ends the stream: all resolvers' errors, joined. It matches
// ErrUnresolvable if all of them do. Otherwise it carries only their text and matches nothing.
func (s *union) final() error {
	err := errors.Join(s.ended...)
	// Joined errors match whatever one of them matches. One that merely ended would then look like a target that nobody
	// can resolve.
	if slices.ContainsFunc(s.ended, func(err error) bool { return !errors.Is(err, ErrUnresolvable) }) {
		return errors.New(err.Error())
	}
	return err
}

// emit yields the difference between the current union and the one that was yielded last. After a
// resolver's error, it yields the whole union. Until all resolvers have answered or mergeGrace is
// over, it yields nothing. It returns false if the consumer broke.
func (s *union) emit(yield func(Update, error) bool) bool {
	pending := 0
	// How many resolvers have not answered yet.
	for n := range s.sets {
		if s.sets[n].State() == StatePending {
			pending++
		}
	}
	s.started = s.started || pending == 0
	// Too early, or nothing to say: no resolver has answered.
	if !s.started || pending > 0 && pending == len(s.sets) {
		return true
	}
	u, changed := delta(&s.yielded, s.whole())
	u, changed = confirm(&s.yielded, &s.recovered, u, changed)
	return !changed || yield(u, nil)
}

// whole returns the union as one update. The sets are visited in the order of the resolvers, so that
// the first one wins an address that several resolvers yield.
func (s *union) whole() Update {
	absent := 0
	byAddr := make(map[netip.AddrPort]struct{})
	var endpoints []Endpoint
	for n := range s.sets {
		if s.sets[n].State() == StateDoesNotExist {
			absent++
		}
		for addr, e := range s.sets[n].byAddr {
			// An earlier resolver has this address already.
			if _, taken := byAddr[addr]; !taken {
				byAddr[addr] = struct{}{}
				endpoints = append(endpoints, *e)
			}
		}
	}
	// Only if all resolvers say so: one that has not answered does not count as one of them.
	if absent == len(s.sets) {
		return Update{Kind: DoesNotExist}
	}
	return Update{Kind: Replace, Endpoints: endpoints}
}
