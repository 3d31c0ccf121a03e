package meters

import (
	"context"
	"sync"
	"time"
)

// maxKeys is how many keys have series of their own, because clients choose keys, and
// a port scan would otherwise fill the memory.
const maxKeys = 1000

// keyed is a bounded map of series by keys that clients choose, such as the address
// that they connect to. The series of a key are shown until RetainIdle after the last
// lookup, or up to an eighth or a second longer, and after the last open connection
// that they count. Then another key can take the place.
type keyed[K comparable, V any] struct {
	meters *Meters
	bind   func(*seriesLease, K) V

	mu  sync.RWMutex
	all map[K]*scoped[V]
}

// scoped is a value with its scope.
type scoped[V any] struct {
	*scope
	value V
}

func newKeyed[K comparable, V any](m *Meters, bind func(*seriesLease, K) V) *keyed[K, V] {
	return &keyed[K, V]{meters: m, bind: bind, all: map[K]*scoped[V]{}}
}

// of returns the value of key, or the value of rest if there are too many keys. The
// values of rest are few, and always shown. Call it for each use.
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
	case key != rest && (d != nil || len(k.all) < maxKeys):
		return k.begin(key)
	}
	if d = k.all[rest]; d == nil {
		always := &scope{seriesLease: k.meters.always, ctx: context.Background()}
		d = &scoped[V]{always, k.bind(always.seriesLease, rest)}
		k.all[rest] = d
	}
	return d.value
}

// begin binds key in a new scope. The caller holds k.mu.
func (k *keyed[K, V]) begin(key K) V {
	ctx, over := context.WithCancel(context.Background())
	t := k.meters.scope(ctx)
	d := &scoped[V]{t, k.bind(t.seriesLease, key)}
	k.all[key] = d
	t.add(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.all[key] == d {
			delete(k.all, key)
		}
	})
	time.AfterFunc(max(k.meters.retain/8, minScope), over) // not before, so that the caller can count
	return d.value
}

// minScope is how long a key is kept if nothing is retained.
const minScope = time.Second

// room bounds the destinations with labels of their own to maxKeys at a time. A
// destination has its place until the series of its last owner are gone. The bound is
// needed because the application chooses the destinations, and each has a dozen series.
type room struct {
	mu     sync.Mutex
	owners map[string]int
}

// has reports whether key has a place, and keeps the place until l ends.
func (r *room) has(l *seriesLease, key string) bool {
	if !r.take(key) {
		return false
	}
	l.add(func() { r.give(key) }) // at once if l has ended
	return true
}

func (r *room) take(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[key] == 0 && len(r.owners) >= maxKeys {
		return false
	}
	if r.owners == nil {
		r.owners = map[string]int{}
	}
	r.owners[key]++
	return true
}

func (r *room) give(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[key]--; r.owners[key] == 0 {
		delete(r.owners, key)
	}
}

// parent returns the name that a destination is counted by. It is empty if there are
// too many destinations.
func (m *Meters) parent(ctx context.Context, d Direction, target string) string {
	if d == Outbound && !m.parents.has(m.seriesLease(ctx), target) {
		return ""
	}
	return target
}

// peers returns labels, or only those of TLS if there are too many servers or
// addresses.
func (m *Meters) peers(l *seriesLease, d Direction, of *room, labels Labels) Labels {
	key := labels["authority"]
	if key == "" {
		key = labels["target_addr"]
	}
	if d != Outbound || key == "" || of.has(l, key) {
		return labels
	}
	few := Labels{}
	for _, name := range []string{"tls", "no_tls_reason"} {
		if value, ok := labels[name]; ok {
			few[name] = value
		}
	}
	return few
}
