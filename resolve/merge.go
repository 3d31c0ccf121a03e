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

// mergeGrace is how long linkerd's proxy waits for its control plane.
const mergeGrace = 10 * time.Second

// Merge returns a Resolver with the endpoints of all rs. An address that several resolve
// to has the [ID], weight and labels of the first one in the order of rs.
//
// A target exists if any resolver has endpoints. Without endpoints it does not exist if
// every resolver reports that, else it is empty. [ErrUnresolvable] counts as not existing,
// and ends the sequence when all report it. Without resolvers no target exists.
//
// The first update follows when all resolvers have answered, or 10 s after the start, so
// that a start does not look like a scale-down.
//
// An error is yielded at once, with the number of its resolver from 1, and leaves the
// endpoints of that resolver unchanged. So does the end of a resolver: wrap it in
// [Reconnect]. The first answer after an error yields the whole set even if it is
// unchanged. The sequence ends when all resolvers have ended.
//
// [ServeStale] around a Merge treats an update of any resolver as an answer of all. Around
// each resolver it drops the endpoints of that one only.
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

// union is one stream of a merge.
type union struct {
	sets    []Set   // by source
	lost    []bool  // the last item of a source is an error
	ended   []error // why a source ended
	started bool    // all have answered, or the grace has ended
	known   Set     // the set that was yielded
	back    bool    // a lost source has answered or ended since the last update
}

// apply applies a message and yields its error. It returns false at the end.
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
		err = errors.New(err.Error()) // must not match ErrUnresolvable while others continue
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

// final returns the last error. It matches ErrUnresolvable if the errors of all do.
func (all *union) final() error {
	err := errors.Join(all.ended...)
	if slices.ContainsFunc(all.ended, func(err error) bool { return !errors.Is(err, ErrUnresolvable) }) {
		return errors.New(err.Error())
	}
	return err
}

// emit yields the change of the union, or the whole set after an error.
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

// whole returns the union as one update.
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
				endpoints = append(endpoints, e)
			}
		}
	}
	if absent == len(all.sets) {
		return Update{Kind: DoesNotExist}
	}
	return Update{Kind: Replace, Endpoints: endpoints}
}
