package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Fallback returns a Resolver that uses primary. While primary reports that the target does not
// exist or cannot be resolved ([ErrUnresolvable]), it uses secondary. It does not use secondary
// if primary reports Empty or yields another error.
//
// A switch to the other resolver yields one Replace, Empty or DoesNotExist. The endpoints of
// primary stay until secondary has answered. secondary is resolved only while it is used. If
// secondary returns ErrUnresolvable, the target does not exist. If both resolvers return
// ErrUnresolvable, the sequence ends with an error that matches ErrUnresolvable.
//
// If primary reports again, after an error, that the target does not exist, the endpoints of
// secondary are yielded again. This shows that the error has ended. If the sequence of a resolver
// ends without ErrUnresolvable, the current endpoints stay, and are yielded again. Resolve of that
// resolver is then not called again. Wrap the resolver in [Reconnect] to avoid that.
func Fallback(primary, secondary Resolver) Resolver {
	requireResolvers(primary, secondary)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			f := fallback{second: secondary, target: target, messages: make(chan message), yield: yield}
			defer startFeed(ctx, primary, target, isFirst, f.messages).close()
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

// fallback has the sets and the errors of both resolvers, for one stream of a Fallback.
type fallback struct {
	second   Resolver
	target   string
	messages chan message
	yield    func(Update, error) bool

	primary, secondary Set      // the set of the primary resolver, and of the secondary one while it is used
	standIn            *feed    // the stream of the secondary resolver; nil while it is not used
	lost               bool     // whether the last item of the primary resolver was an error
	final              [2]error // the ErrUnresolvable of the primary and the secondary resolver, or nil
}

// apply applies m, a message of the primary or the secondary resolver, and yields the resulting
// update or error. It returns false if the stream must end.
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

// repeat yields again the set of the resolver in use, because an update ends an error. It yields
// nothing if that resolver has not answered yet. It returns false if the consumer broke.
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
		return f.repeat() // because the error is over
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
