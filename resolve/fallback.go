package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Fallback returns a Resolver that takes its answers from first, and from
// second while first says that the target does not exist or cannot be resolved
// ([ErrUnresolvable]). Whatever else first says, be it that the target is
// empty, is its answer, and at once takes the place of second's. An error of
// first is no answer: what was known stays in force.
//
// A switch is one Replace, Empty or DoesNotExist. When first says that the
// target does not exist, what was known stays in force until second has
// answered. Second is watched only while it is needed; that it cannot resolve
// the target counts as its saying that there is none. When neither can resolve
// it, whichever said so first, the sequence ends with an error that matches
// ErrUnresolvable.
//
// When first says again after an error that the target does not exist, what is
// known of second is said again: the error is over. To [ServeStale] around it,
// an update is an answer, be it of first or of second; around each of them it
// judges each by itself.
//
// A resolver whose sequence ends otherwise is not asked again: wrap it in
// [Reconnect]. What is in force stays so, and is said once more, for nothing else
// would ever say that its error is over.
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
					if !f.take(ctx, m) {
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

	primary, stand Set      // what first says, and what second says while it is needed
	standIn        *feed    // second, while it is needed
	lost           bool     // the last word of first is an error
	never          [2]error // why one cannot resolve the target; of second, while it is needed
}

// take passes on what may be, and returns whether to go on.
func (f *fallback) take(ctx context.Context, m message) bool {
	switch {
	case m.ended && errors.Is(m.err, ErrUnresolvable):
		f.never[m.from] = m.err
		if !slices.Contains(f.never[:], nil) {
			f.yield(Update{}, fmt.Errorf("fallback: %w", errors.Join(f.never[:]...)))
			return false
		}
		m.update = Update{Kind: DoesNotExist}
	case m.ended:
		return f.yield(Update{}, m.err) && f.sayAgain()
	case m.err != nil:
		f.lost = f.lost || m.from == isFirst
		return f.yield(Update{}, m.err)
	}
	if m.from == isSecond {
		return f.takeSecond(m.update)
	}
	return f.takeFirst(ctx, m.update)
}

// sayAgain says what is in force, as far as whoever is asked has said so.
func (f *fallback) sayAgain() bool {
	known := &f.primary
	if f.standIn != nil {
		known = &f.stand
	}
	return known.State() == StatePending || f.yield(whole(known), nil)
}

func (f *fallback) takeFirst(ctx context.Context, u Update) bool {
	f.primary.Apply(u)
	back := f.lost
	f.lost = false
	switch absent := f.primary.State() == StateDoesNotExist; {
	case absent && f.standIn == nil:
		f.stand = Set{}
		f.standIn = startFeed(ctx, f.second, f.target, isSecond, f.messages)
		return true
	case absent && back && f.stand.State() != StatePending:
		return f.sayAgain() // whoever heard of the error must hear that it is over
	case absent:
		return true
	case f.standIn == nil:
		return f.yield(u, nil)
	}
	f.standIn.close()
	f.standIn, f.never[isSecond] = nil, nil
	return f.yield(whole(&f.primary), nil)
}

func (f *fallback) takeSecond(u Update) bool {
	fresh := f.stand.State() == StatePending
	f.stand.Apply(u)
	switch {
	case f.stand.State() == StatePending:
		return true
	case fresh:
		u = whole(&f.stand)
	}
	return f.yield(u, nil)
}
