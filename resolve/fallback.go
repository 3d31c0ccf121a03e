package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Fallback returns a Resolver that uses first, and second while first reports that the
// target does not exist or cannot be resolved ([ErrUnresolvable]). An empty target and an
// error of first are no reason to use second.
//
// A switch is one Replace, Empty or DoesNotExist. The endpoints of first stay until
// second has answered. Second is resolved only while it is used; its ErrUnresolvable
// counts as not existing. When both are unresolvable, the sequence ends with an error
// that matches ErrUnresolvable.
//
// When first has recovered from an error and the target still does not exist there, the
// endpoints of second are yielded again, because the error is over. A resolver whose
// sequence ends otherwise is not used again: wrap it in [Reconnect]. The current
// endpoints then stay and are yielded again.
func Fallback(first, second Resolver) Resolver {
	requireResolvers(first, second)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			f := fallback{second: second, target: target, messages: make(chan message), yield: yield}
			defer startFeed(ctx, first, target, isFirst, f.messages).close()
			defer func() { f.standIn.close() }()
			for ctx.Err() == nil {
				select {
				case <-ctx.Done():
				case m := <-f.messages:
					if !f.apply(ctx, m) {
						return
					}
				}
			}
		}
	})
}

const (
	isFirst = iota
	isSecond
)

// fallback is one stream of a Fallback.
type fallback struct {
	second   Resolver
	target   string
	messages chan message
	yield    func(Update, error) bool

	primary, secondary Set      // the answers of first, and of second while it is used
	standIn            *feed    // second, while it is used
	lost               bool     // the last item of first is an error
	final              [2]error // ErrUnresolvable of each
}

// apply yields the effect of a message. It returns false at the end.
func (f *fallback) apply(ctx context.Context, m message) bool {
	switch {
	case m.ended && errors.Is(m.err, ErrUnresolvable):
		f.final[m.from] = m.err
		if !slices.Contains(f.final[:], nil) {
			f.yield(Update{}, fmt.Errorf("fallback: %w", errors.Join(f.final[:]...)))
			return false
		}
		m.update = Update{Kind: DoesNotExist}
	case m.ended:
		return f.yield(Update{}, m.err) && f.repeat()
	case m.err != nil:
		f.lost = f.lost || m.from == isFirst
		return f.yield(Update{}, m.err)
	}
	if m.from == isSecond {
		return f.applySecond(m.update)
	}
	return f.applyFirst(ctx, m.update)
}

// repeat yields the current set, unless it is pending.
func (f *fallback) repeat() bool {
	known := &f.primary
	if f.standIn != nil {
		known = &f.secondary
	}
	return known.State() == StatePending || f.yield(whole(known), nil)
}

func (f *fallback) applyFirst(ctx context.Context, u Update) bool {
	f.primary.Apply(u)
	back := f.lost
	f.lost = false
	switch absent := f.primary.State() == StateDoesNotExist; {
	case absent && f.standIn == nil:
		f.secondary = Set{}
		f.standIn = startFeed(ctx, f.second, f.target, isSecond, f.messages)
		return true
	case absent && back && f.secondary.State() != StatePending:
		return f.repeat() // ends the error
	case absent:
		return true
	case f.standIn == nil:
		return f.yield(u, nil)
	}
	f.standIn.close()
	f.standIn, f.final[isSecond] = nil, nil
	return f.yield(whole(&f.primary), nil)
}

func (f *fallback) applySecond(u Update) bool {
	isFirst := f.secondary.State() == StatePending
	f.secondary.Apply(u)
	switch {
	case f.secondary.State() == StatePending:
		return true
	case isFirst:
		u = whole(&f.secondary)
	}
	return f.yield(u, nil)
}
