package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
// it, the sequence ends with an error that matches ErrUnresolvable.
//
// A resolver whose sequence ends otherwise is not asked again: what it said
// last stays in force. Wrap it in [Reconnect].
func Fallback(first, second Resolver) Resolver {
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

	primary, stand Set   // what first says, and what second says while it is needed
	standIn        *feed // second, while it is needed
	never          error // why first cannot resolve the target
}

func (f *fallback) take(ctx context.Context, m message) bool {
	if m.from == isSecond {
		return f.takeSecond(m)
	}
	switch {
	case m.ended && errors.Is(m.err, ErrUnresolvable):
		f.never = m.err
		m.update = Update{Kind: DoesNotExist}
	case m.err != nil:
		return f.yield(Update{}, m.err)
	}
	f.primary.Apply(m.update)
	switch absent := f.primary.State() == StateDoesNotExist; {
	case absent && f.standIn == nil:
		f.stand = Set{}
		f.standIn = startFeed(ctx, f.second, f.target, isSecond, f.messages)
		return true
	case absent:
		return true
	case f.standIn == nil:
		return f.yield(m.update, nil)
	}
	f.standIn.close()
	f.standIn = nil
	return f.yield(whole(&f.primary), nil)
}

func (f *fallback) takeSecond(m message) bool {
	switch {
	case m.ended && errors.Is(m.err, ErrUnresolvable):
		if f.never != nil {
			f.yield(Update{}, fmt.Errorf("fallback: %w", errors.Join(f.never, m.err)))
			return false
		}
		m.update = Update{Kind: DoesNotExist}
	case m.err != nil:
		return f.yield(Update{}, m.err)
	}
	fresh := f.stand.State() == StatePending
	f.stand.Apply(m.update)
	switch {
	case f.stand.State() == StatePending:
		return true
	case fresh:
		m.update = whole(&f.stand)
	}
	return f.yield(m.update, nil)
}
