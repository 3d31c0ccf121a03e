package layer

import (
	"fmt"
	"hash/maphash"
	"time"
)

// Option sets a property that layers of this package share. Pass options to [NewStack],
// for all layers of a stack, or to a single layer. A nil Option is ignored, here and
// everywhere in this module.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	target   string
	complete Completion[Rsp]
	bare     bool // responses end when Call returns, because they have no body
	classify Classifier[Rsp]
	replayer any // a Replayer[Req, Rsp]; asserted where Req is known
	to       Instruments
}

// given returns the options that were set, without defaults.
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

// WithCompletion determines when a response ends. At its end layers release its slot,
// end its context and measure it. The default is [AtEnd].
func WithCompletion[Rsp any](c Completion[Rsp]) Option[Rsp] {
	check(c != nil, "WithCompletion: nil Completion")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithTarget sets the target that a layer reports in errors and descriptions.
func WithTarget[Rsp any](target string) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.target = target })
}

// WithMetrics sets the instruments of layers, see [Instruments].
func WithMetrics[Rsp any](i Instruments) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.to = i })
}

// check panics with message if ok is false. Constructors use it to report programming errors.
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

// checkAtLeast panics if n is below least or NaN. name is the name of the argument.
func checkAtLeast[N int | int64 | float64 | time.Duration](name string, n, least N) {
	if n >= least {
		return
	}
	panic(fmt.Sprintf("layer: %s is %v, must be at least %v", name, n, least))
}

// keyedShards is the largest number of shards of a layer with keys. Each shard has its
// own lock. It must be a power of two.
const keyedShards = 64

// keyedHash maps keys to shards. It panics if a key cannot be compared, such as an
// interface that holds a slice. That happens before a lock is taken.
type keyedHash[K comparable] struct {
	seed maphash.Seed
	mask uint64
}

// newKeyedHash returns a keyedHash for n shards. n must be a power of two.
func newKeyedHash[K comparable](n int) keyedHash[K] {
	return keyedHash[K]{maphash.MakeSeed(), uint64(n - 1)}
}

func (h keyedHash[K]) shard(key K) uint64 { return maphash.Comparable(h.seed, key) & h.mask }

// isUnequalKey reports whether key is not equal to itself, such as NaN. A map cannot
// find such a key.
func isUnequalKey[K comparable](key K) bool {
	return key != key //nolint:gocritic,revive // intended
}

// rejectUnequalKey returns the rejection of a key that is not equal to itself.
func rejectUnequalKey(layer, target string) *Error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: "the key is not equal to itself"}
}
