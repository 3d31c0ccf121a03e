package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Fallback returns a Resolver that uses primary. While primary reports that the target does not
// exist or cannot be resolved ([ErrUnresolvable]), it uses secondary. It does not use secondary if
// primary reports Empty or yields another error.
//
// A switch to the other resolver yields one Replace, Empty or DoesNotExist. The endpoints of
// primary stay until secondary has answered. secondary is resolved only while it is used. If
// secondary returns ErrUnresolvable, the target does not exist. If both resolvers return
// ErrUnresolvable, the sequence ends with an error that matches ErrUnresolvable.
//
// If primary reports again, after an error, that the target does not exist, secondary's endpoints
// are yielded again, to show that the error has ended. If a resolver's sequence ends without
// ErrUnresolvable, the current endpoints stay, and are yielded again. That resolver is then not
// called again; you can avoid this by wrapping it in [Reconnect].
func Fallback(primary, secondary Resolver) Resolver {
	requireResolvers(primary, secondary)
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		return func(yield func(Update, error) bool) {
			// Both resolvers send to this one channel. The index in a message tells which one it was.
			f := fallback{second: secondary, target: target, messages: make(chan message), yield: yield}
			// A function, because standIn is replaced while the stream runs.
			defer startFeed(ctx, primary, target, isFirst, f.messages).close()
			defer func() { f.standIn.close() }()
			for ctx.Err() == nil {
				select {
				case <-ctx.Done(): // the condition of the loop ends the stream
				case m := <-f.messages:
					if !f.apply(ctx, m) {
						return
					}
				}
			}
		}
	})
}

// The index of the two resolvers in a message and in fallback.final.
const (
	isFirst = iota
	isSecond
)

// fallback is the state of one stream that a Resolver from Fallback yields: both resolvers' sets and
// errors. Only the stream's goroutine uses it.
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
		// Without the other resolver in use, its element is nil, so that one that gave up is not the end.
		f.final[m.index] = m.err
		// Both resolvers have given up, so nothing more can come.
		if !slices.Contains(f.final[:], nil) {
			f.yield(Update{}, fmt.Errorf("fallback: %w", errors.Join(f.final[:]...)))
			return false
		}
		// While the other resolver may still answer, ErrUnresolvable only means that this one does not
		// know the target.
		m.update = Update{Kind: DoesNotExist}
	case m.ended:
		// A resolver that ended otherwise will not be called again. Its last endpoints stay.
		return f.yield(Update{}, m.err) && f.repeat()
	case m.err != nil:
		// Only the primary's error is remembered: applyFirst repeats the endpoints when it is over.
		f.lost = f.lost || m.index == isFirst
		return f.yield(Update{}, m.err)
	}
	if m.index == isSecond {
		return f.applySecond(m.update)
	}
	return f.applyFirst(ctx, m.update)
}

// repeat yields all endpoints of the resolver in use again. It is called after one of the resolvers has had an
// error, which counts until the next update, to tell the consumer that the endpoints can be used. repeat yields
// nothing if the resolver in use has not answered yet. It returns false if the consumer broke.
func (f *fallback) repeat() bool {
	set := &f.primary
	if f.standIn != nil {
		set = &f.secondary
	}
	return set.State() == StatePending || f.yield(whole(set), nil)
}

// applyFirst applies u, an update from the primary resolver. It starts the secondary resolver when the
// target stops existing, and ends it when the target exists again. It returns false if the consumer
// broke.
func (f *fallback) applyFirst(ctx context.Context, u Update) bool {
	f.primary.Apply(u)
	recovered := f.lost
	f.lost = false
	switch absent := f.primary.State() == StateDoesNotExist; {
	case absent && f.standIn == nil:
		// A new set, because what an earlier stream of the secondary resolver yielded may be old.
		f.secondary = Set{}
		f.standIn = startFeed(ctx, f.second, f.target, isSecond, f.messages)
		// Nothing is yielded: the consumer keeps the primary's endpoints until the secondary has answered.
		return true
	case absent && recovered && f.secondary.State() != StatePending:
		return f.repeat() // because the error is over
	// The secondary resolver is in use already, or has not answered yet.
	case absent:
		return true
	// The usual case: the primary resolver is in use.
	case f.standIn == nil:
		return f.yield(u, nil)
	}
	// The target exists again. The consumer holds the endpoints of the secondary resolver, so that it
	// needs the whole set.
	f.standIn.close()
	// An earlier end of the secondary resolver does not count any longer: it will be resolved anew.
	f.standIn, f.final[isSecond] = nil, nil
	return f.yield(whole(&f.primary), nil)
}

// applySecond applies u, an update from the secondary resolver while that one is in use. It returns
// false if the consumer broke.
func (f *fallback) applySecond(u Update) bool {
	isFirst := f.secondary.State() == StatePending
	f.secondary.Apply(u)
	switch {
	// An empty Add or a Remove before the first answer says nothing yet.
	case f.secondary.State() == StatePending:
		return true
	case isFirst:
		// The consumer still holds the primary's endpoints, which an Add alone would not remove.
		u = whole(&f.secondary)
	}
	return f.yield(u, nil)
}
