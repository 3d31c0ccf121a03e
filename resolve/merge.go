package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
)

// mergeGrace is as long as linkerd's proxy gives its control plane.
const mergeGrace = 10 * time.Second

// Merge returns a Resolver whose targets have the endpoints of all rs together.
// It is [MergeWithin] with a grace of 10 s, which is how long linkerd's proxy
// waits for its control plane.
func Merge(rs ...Resolver) Resolver { return MergeWithin(mergeGrace, rs...) }

// MergeWithin returns a Resolver whose targets have the endpoints of all rs
// together. What several say of one endpoint is taken from the first of them in
// the order of rs: its weight, its labels, and its [ID] if they differ in that,
// for a set has one endpoint an address.
//
// A target exists if any resolver has endpoints for it. With no endpoint at
// all, it does not exist if every resolver said so, and is else empty. One that
// cannot resolve the target ([ErrUnresolvable]) counts as having said that it
// does not exist; when none can, the sequence ends with that error. With no
// resolvers, no target exists.
//
// No update is yielded before all have answered, or before grace has passed
// since the start, so that a start does not look like a shrink. After that each
// change is one update. A grace of 0 or less waits for nobody.
//
// The error of one is passed on at once, with its number, counted from 1; what
// that one said last stays in force. The first answer of a resolver after an
// error of it is an update even if it changes nothing, and then all that is
// known: it says that the error is over. A resolver whose sequence ends
// otherwise is not asked again: wrap it in [Reconnect]. What it said last stays in
// force for as long as the others go on, and all that is known is said once more,
// for nothing else would ever say that its error is over. When all have ended, so
// does the merged sequence.
//
// To [ServeStale] around it, an update is an answer, whichever of rs it is of.
// Around each of rs it judges each by itself, and lets go, at MaxAge, of the
// endpoints of that one alone.
func MergeWithin(grace time.Duration, rs ...Resolver) Resolver {
	requireResolvers(rs...)
	return merge{grace: grace, sources: slices.Clone(rs)}
}

type merge struct {
	grace   time.Duration
	sources []Resolver
}

func (m merge) Resolve(ctx context.Context, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		messages, feeds := make(chan message), make(feeds, len(m.sources))
		defer feeds.close()
		for n, r := range m.sources {
			feeds[n] = startFeed(ctx, r, target, n, messages)
		}
		grace := time.NewTimer(m.grace)
		defer grace.Stop()
		all := union{
			sets: make([]Set, len(m.sources)), lost: make([]bool, len(m.sources)),
			over: make([]error, len(m.sources)), late: m.grace <= 0,
		}
		for ctx.Err() == nil && all.say(yield) {
			select {
			case <-ctx.Done():
			case <-grace.C:
				all.late = true
			case got := <-messages:
				if !all.take(got, yield) {
					return
				}
			}
		}
	}
}

// union is what one stream of a merge knows.
type union struct {
	sets  []Set   // by source
	lost  []bool  // the last word of a source is an error
	over  []error // why a source ended
	late  bool    // the grace is over, or all have answered
	known Set     // what the consumer was told
	last  Diff    // of the source that spoke last, until that was told
	back  bool    // a source that was lost has answered, or ended, until that was told
}

// take notes what a source said, and passes on what is an error. It returns
// false when that was the last there is.
func (all *union) take(m message, yield func(Update, error) bool) bool {
	if m.err == nil {
		all.apply(m.from, m.update)
		return true
	}
	all.lost[m.from] = true
	err := fmt.Errorf("merge: source %d of %d: %w", m.from+1, len(all.sets), m.err)
	if !m.ended {
		return yield(Update{}, err)
	}
	all.over[m.from] = err
	final := errors.Is(err, ErrUnresolvable)
	if !slices.Contains(all.over, nil) {
		return all.end(yield)
	}
	if final {
		all.apply(m.from, Update{Kind: DoesNotExist})
		err = errors.New(err.Error()) // others go on: it must not match ErrUnresolvable
	}
	all.back = true // nothing more is to be heard of it, so this is over
	return yield(Update{}, err)
}

// apply notes an answer of a source.
func (all *union) apply(from int, u Update) {
	all.last = all.sets[from].Apply(u)
	if all.last.After != StatePending {
		all.back = all.back || all.lost[from]
		all.lost[from] = false
	}
}

// end says why nothing more will come.
func (all *union) end(yield func(Update, error) bool) bool {
	possible := slices.ContainsFunc(all.over, func(err error) bool { return !errors.Is(err, ErrUnresolvable) })
	err := errors.Join(all.over...)
	if possible {
		err = errors.New(err.Error()) // one of them could resolve it
	}
	yield(Update{}, err)
	return false
}

// say yields what changed, or that an error is over, once it may be said.
func (all *union) say(yield func(Update, error) bool) bool {
	pending := func(s Set) bool { return s.State() == StatePending }
	all.late = all.late || !slices.ContainsFunc(all.sets, pending)
	if !all.late || len(all.sets) > 0 && !slices.ContainsFunc(all.sets, func(s Set) bool { return !pending(s) }) {
		return true
	}
	u, changed := delta(&all.known, all.next())
	u, changed = confirm(&all.known, &all.back, u, changed)
	all.last = Diff{}
	return !changed || yield(u, nil)
}

// next brings what is known up to date. One change must not cost a look at all
// endpoints, so it is the whole union only where it has to be: the state may
// change, or some come as others go.
func (all *union) next() Update {
	if all.known.State() != StateExists {
		return all.whole()
	}
	var fresh []Endpoint
	var gone []netip.AddrPort
	for _, list := range [][]Endpoint{all.last.Added, all.last.Changed, all.last.Removed} {
		for _, e := range list {
			if first, ok := all.first(e.Addr); ok {
				fresh = append(fresh, first)
			} else {
				gone = append(gone, e.Addr)
			}
		}
	}
	switch {
	case len(gone) == 0:
		return Update{Kind: Add, Endpoints: fresh}
	case len(fresh) == 0 && len(gone) < all.known.Len():
		return Update{Kind: Remove, Removed: gone}
	}
	return all.whole()
}

// first is what the first source says that has the address.
func (all *union) first(addr netip.AddrPort) (Endpoint, bool) {
	for n := range all.sets {
		if e, ok := all.sets[n].byAddr[addr]; ok {
			return e, true
		}
	}
	return Endpoint{}, false
}

// whole is the union as one update.
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

// message is an item of one of several sources.
type message struct {
	from   int // number of the source
	update Update
	err    error
	ended  bool // nothing more comes from this source; err says why
}

// feed reads a source in a goroutine of its own, for a stream that waits for
// more than one thing.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startFeed sends what r says of target until the feed is closed or r ends. A panic
// of r is an error, and its end.
// into must have no buffer: so nothing of a closed feed is left in it.
func startFeed(ctx context.Context, r Resolver, target string, from int, into chan<- message) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer cancel()
		send := func(m message) bool {
			m.from = from
			select {
			case into <- m:
				return !m.ended
			case <-ctx.Done():
				return false
			}
		}
		open := true
		err := panics.Do("the resolver", func() error {
			for u, err := range r.Resolve(ctx, target) {
				if open = send(message{update: u, err: err, ended: errors.Is(err, ErrUnresolvable)}); !open {
					break
				}
			}
			return nil
		})
		if err != nil && open {
			open = send(message{err: fmt.Errorf("resolve %q: %w", target, err)})
		}
		if open {
			send(message{err: fmt.Errorf("resolve %q: %w", target, stream.ErrEnded), ended: true})
		}
	}()
	return f
}

// close ends the feed and waits until its source has let go. It may be called
// again, and on nil.
func (f *feed) close() {
	if f != nil {
		f.cancel()
		<-f.done
	}
}

// feeds are several that end together.
type feeds []*feed

// close ends all of them, and then waits.
func (list feeds) close() {
	for _, f := range list {
		f.cancel()
	}
	for _, f := range list {
		f.close()
	}
}
