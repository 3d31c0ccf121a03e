package meters

import (
	"context"
	"sync"
	"time"
)

// mostKeys is how many keys have series of their own: whoever scans ports is not
// to fill the memory.
const mostKeys = 1000

// keyed is what counts by keys that others choose, such as the address that they
// connect to. What counts for a key is shown until RetainIdle after it was asked
// for last, or up to an eighth or a second longer, and after the last of what it
// counts as open; then there is room for another key.
type keyed[K comparable, V any] struct {
	meters *Meters
	bind   func(*lease, K) V

	mu  sync.RWMutex
	all map[K]*during[V]
}

// during is a value for a term.
type during[V any] struct {
	*term
	value V
}

func newKeyed[K comparable, V any](m *Meters, bind func(*lease, K) V) *keyed[K, V] {
	return &keyed[K, V]{meters: m, bind: bind, all: map[K]*during[V]{}}
}

// of returns what counts for key or, where there are too many keys, for rest,
// which is one of few, always has room, and is shown always. Ask each time.
func (k *keyed[K, V]) of(key, rest K) V {
	k.mu.RLock()
	d := k.all[key]
	k.mu.RUnlock()
	if d != nil && d.holds() {
		return d.value
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	d = k.all[key]
	switch {
	case d != nil && d.holds():
		return d.value
	case key != rest && (d != nil || len(k.all) < mostKeys):
		return k.begin(key)
	}
	if d = k.all[rest]; d == nil {
		always := &term{lease: k.meters.always, ctx: context.Background()}
		d = &during[V]{always, k.bind(always.lease, rest)}
		k.all[rest] = d
	}
	return d.value
}

// begin binds key for a term. It needs k.mu.
func (k *keyed[K, V]) begin(key K) V {
	ctx, over := context.WithCancel(context.Background())
	t := k.meters.term(ctx)
	d := &during[V]{t, k.bind(t.lease, key)}
	k.all[key] = d
	t.add(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.all[key] == d {
			delete(k.all, key)
		}
	})
	time.AfterFunc(max(k.meters.retain/8, leastTerm), over) // not before: who asked must be able to count
	return d.value
}

// leastTerm is how long a key is kept at least, where nothing is to be retained.
const leastTerm = time.Second
