package layer

import (
	"fmt"
	"hash/maphash"
	"time"
)

// Option sets properties that the layers of this package share. Give options to
// [NewStack], for all layers of a stack, or to a single layer. A nil Option is
// ignored, here and wherever this module takes options.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	target   string
	complete Completion[Rsp]
	bare     bool // without a Completion and without a body: a response ends when Call returns
	classify Classifier[Rsp]
	replayer any // a Replayer[Req, Rsp]; asserted where Req is known
	to       Instruments
}

// given returns what opts say, without the defaults.
func given[Rsp any](opts []Option[Rsp]) (o options[Rsp]) {
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	return o
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	o := given(opts)
	if o.complete == nil {
		o.complete, o.bare = AtEnd[Rsp](), !HasBody[Rsp]()
	}
	if o.classify == nil {
		o.classify = DefaultClassifier[Rsp]
	}
	o.to = o.to.orDiscard()
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// WithCompletion defines the end of a response for this layer: then slots,
// contexts and measurements end. The default is [AtEnd].
func WithCompletion[Rsp any](c Completion[Rsp]) Option[Rsp] {
	check(c != nil, "WithCompletion: nil Completion")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithTarget names the target that a layer works for, in its errors and its
// description.
func WithTarget[Rsp any](target string) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.target = target })
}

// WithMetrics gives layers the instruments that they write to, each its own: see
// [Instruments].
func WithMetrics[Rsp any](i Instruments) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.to = i })
}

// check panics with the message unless ok. Constructors check the arguments that
// are wrong only by a mistake in the program.
func check(ok bool, message string) {
	if !ok {
		panic("layer: " + message)
	}
}

// checkPolicy panics if the policy of a layer is invalid.
func checkPolicy(p interface{ Validate() error }) {
	if err := p.Validate(); err != nil {
		panic("layer: " + err.Error())
	}
}

// checkAtLeast panics if n is below least. what names the argument.
func checkAtLeast[N int | int64 | float64 | time.Duration](what string, n, least N) {
	if n >= least {
		return
	}
	panic(fmt.Sprintf("layer: %s is %v, must be at least %v", what, n, least)) // also for NaN
}

// keyedShards is into how many parts the state of a layer by key is divided at
// the most, each with a lock of its own. A power of two.
const keyedShards = 64

// keyedHash spreads keys over shards. It panics on a key that cannot be
// compared (an interface that holds a slice) before any lock is taken.
type keyedHash[K comparable] struct {
	seed maphash.Seed
	mask uint64
}

// newKeyedHash spreads over n shards, a power of two.
func newKeyedHash[K comparable](n int) keyedHash[K] {
	return keyedHash[K]{maphash.MakeSeed(), uint64(n - 1)}
}

func (h keyedHash[K]) shard(key K) uint64 { return maphash.Comparable(h.seed, key) & h.mask }

// isUnequalKey reports whether key is not even equal to itself (a NaN): what a
// map keeps under such a key is never found again.
func isUnequalKey[K comparable](key K) bool {
	return key != key //nolint:gocritic,revive // that is the question
}

// rejectUnequalKey is the rejection of such a key, shared by all of them.
func rejectUnequalKey(layer, target string) *Error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: "the key is not equal to itself"}
}
