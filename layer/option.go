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
	bare     bool // a response ends when Call returns
	classify Classifier[Rsp]
	replayer any // a Replayer[Req, Rsp]; asserted where Req is known
	to       Instruments
}

// given returns the options without defaults.
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

// WithTarget sets the target in the errors and the description of a layer.
func WithTarget[Rsp any](target string) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.target = target })
}

// WithMetrics sets the instruments of layers, see [Instruments].
func WithMetrics[Rsp any](i Instruments) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.to = i })
}

// check panics with the message unless ok. Constructors use it for programming
// errors.
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

// keyedShards is the maximum number of shards of a layer by key, each with its
// own lock. It is a power of two.
const keyedShards = 64

// keyedHash spreads keys over shards. It panics before any lock is taken if a key
// cannot be compared, such as an interface that holds a slice.
type keyedHash[K comparable] struct {
	seed maphash.Seed
	mask uint64
}

// newKeyedHash returns a hash over n shards, a power of two.
func newKeyedHash[K comparable](n int) keyedHash[K] {
	return keyedHash[K]{maphash.MakeSeed(), uint64(n - 1)}
}

func (h keyedHash[K]) shard(key K) uint64 { return maphash.Comparable(h.seed, key) & h.mask }

// isUnequalKey reports whether key is not equal to itself, such as NaN. A map never
// finds such a key.
func isUnequalKey[K comparable](key K) bool {
	return key != key //nolint:gocritic,revive // intended
}

// rejectUnequalKey returns the rejection of such keys.
func rejectUnequalKey(layer, target string) *Error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: "the key is not equal to itself"}
}
