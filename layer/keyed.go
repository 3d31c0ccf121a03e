package layer

import "hash/maphash"

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

// keyedUnequal reports whether key is not even equal to itself (a NaN): what a
// map keeps under such a key is never found again.
func keyedUnequal[K comparable](key K) bool {
	return key != key //nolint:gocritic,revive // that is the question
}

// keyedRefusal is the refusal of such a key, shared by all of them.
func keyedRefusal(layer, target string) *Error {
	return &Error{Layer: layer, Target: target, Kind: ErrNotReady, Reason: "the key is not equal to itself"}
}

// keyedAlike is the key of requests that nobody tells apart.
func keyedAlike[K comparable, Req any](Req) (key K) { return key }
