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

// mergeGrace is the time after which the first update of a Merge no longer waits for
// resolvers that have not answered. linkerd's proxy waits as long for its control plane.
const mergeGrace = 10 * time.Second

// Merge returns a Resolver with the endpoints of all rs. If several resolvers yield the
// same address, the endpoint has the [ID], weight and labels from the first of these
// resolvers.
//
// A target exists if any resolver has endpoints. Otherwise, if every resolver reports that
// the target does not exist, it does not exist. In all other cases it is empty.
// [ErrUnresolvable] counts as DoesNotExist. If all resolvers report ErrUnresolvable, the
// sequence ends. Without resolvers no target exists.
//
// The first update is yielded when all resolvers have answered, or after 10 s, so that it
// does not remove endpoints of slow resolvers.
//
// An error is yielded at once, with the number of its resolver, counted from 1. It leaves the
// endpoints of that resolver unchanged. The end of a resolver counts as such an error: wrap the
// resolver in [Reconnect]. The first answer after an error yields the whole set even if nothing
// has changed. The sequence ends when all resolvers have ended.
//
// [ServeStale] around a Merge treats an update of any resolver as an answer of all resolvers. To
// drop only the endpoints of a resolver that fails, wrap each resolver in ServeStale.
func Merge(rs ...Resolver) Resolver {
	requireResolvers(rs...)
	sources := slices.Clone(rs)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) { merge(ctx, sources, target, yield) }
	})
}

func merge(ctx context.Context, sources []Resolver, target string, yield func(Update, error) bool) {
	messages, feeds := make(chan message), make(feeds, len(sources))
	defer feeds.close()
	for n, r := range sources {
		feeds[n] = startFeed(ctx, r, target, n, messages)
	}
	grace := time.NewTimer(mergeGrace)
	defer grace.Stop()
	all := union{sets: make([]Set, len(sources)), lost: make([]bool, len(sources)), ended: make([]error, len(sources))}
	for ctx.Err() == nil && all.emit(yield) {
		select {
		case <-ctx.Done():
		case <-grace.C:
			all.started = true
		case m := <-messages:
			if !all.apply(m, yield) {
				return
			}
		}
	}
}

// union is the state of one stream of a Merge. It has the set of each resolver, and the union of
// these sets that was yielded last.
type union struct {
	sets    []Set   // the set of each resolver
	lost    []bool  // whether the last item of a resolver is an error
	ended   []error // why a resolver ended, or nil
	started bool    // whether all resolvers have answered, or mergeGrace is over
	known   Set     // the union that was yielded last
	back    bool    // whether a resolver has recovered or ended since the last update
}

// apply applies the update in m to the set of the resolver that sent m. If m has an error
// instead, apply yields that error. It returns false if the stream must end.
func (all *union) apply(m message, yield func(Update, error) bool) bool {
	if m.err == nil {
		all.update(m.from, m.update)
		return true
	}
	all.lost[m.from] = true
	err := fmt.Errorf("merge: source %d of %d: %w", m.from+1, len(all.sets), m.err)
	if !m.ended {
		return yield(Update{}, err)
	}
	all.ended[m.from] = err
	if !slices.Contains(all.ended, nil) {
		yield(Update{}, all.final())
		return false
	}
	if errors.Is(err, ErrUnresolvable) {
		all.update(m.from, Update{Kind: DoesNotExist})
		err = errors.New(err.Error()) // does not match ErrUnresolvable, because others continue
	}
	all.back = true
	return yield(Update{}, err)
}

func (all *union) update(from int, u Update) {
	if d := all.sets[from].Apply(u); d.After != StatePending {
		all.back = all.back || all.lost[from]
		all.lost[from] = false
	}
}

// final returns the error that ends the stream: the joined errors of all resolvers. It matches
// ErrUnresolvable if all of them do. Otherwise it has only their text and matches nothing.
func (all *union) final() error {
	err := errors.Join(all.ended...)
	if slices.ContainsFunc(all.ended, func(err error) bool { return !errors.Is(err, ErrUnresolvable) }) {
		return errors.New(err.Error())
	}
	return err
}

// emit yields the difference between the current union and the one that was yielded last. After
// an error of a resolver, it yields the whole union. Until all resolvers have answered or
// mergeGrace is over, it yields nothing. It returns false if the consumer broke.
func (all *union) emit(yield func(Update, error) bool) bool {
	pending := 0
	for n := range all.sets {
		if all.sets[n].State() == StatePending {
			pending++
		}
	}
	all.started = all.started || pending == 0
	if !all.started || pending > 0 && pending == len(all.sets) {
		return true
	}
	u, changed := delta(&all.known, all.whole())
	u, changed = confirm(&all.known, &all.back, u, changed)
	return !changed || yield(u, nil)
}

func (all *union) whole() Update {
	absent := 0
	byAddr := make(map[netip.AddrPort]struct{})
	var endpoints []Endpoint
	for n := range all.sets {
		if all.sets[n].State() == StateDoesNotExist {
			absent++
		}
		for addr, e := range all.sets[n].byAddr {
			if _, taken := byAddr[addr]; !taken {
				byAddr[addr] = struct{}{}
				endpoints = append(endpoints, *e)
			}
		}
	}
	if absent == len(all.sets) {
		return Update{Kind: DoesNotExist}
	}
	return Update{Kind: Replace, Endpoints: endpoints}
}
