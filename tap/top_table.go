package tap

import (
	"hash/maphash"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/tap/tappb"
)

const (
	// maxRows and maxTableText bound the memory of a table to about 1.2 MiB.
	maxRows      = 1000
	maxTableText = 128 << 10

	tableSlots = 2048 // a power of two, twice maxRows

	otherRow = "(other)"
)

// table is rows that requests find without a lock: an open hash table to which
// rows are added and from which none is taken. When it is full, the rest is
// counted in other.
type table struct {
	byRoute       bool
	byDestination bool // and by nothing else but the direction
	seed          maphash.Seed
	slots         [tableSlots]atomic.Pointer[row]
	free          atomic.Int64 // rows that may still be added
	room          atomic.Int64 // bytes of text that still fit
	other         *row

	start, sampled time.Time // of who reads, and what the rows have of who reads
}

func newTable(byRoute bool) *table {
	now := time.Now()
	t := &table{byRoute: byRoute, seed: maphash.MakeSeed(), other: newRow(&rowKey{path: otherRow}), start: now, sampled: now}
	t.free.Store(maxRows)
	t.room.Store(maxTableText)
	return t
}

// tableOf is an empty table of the rows that req asks for.
func tableOf(req *tappb.TopRequest) *table {
	t := newTable(req.GetByRoute() && !req.GetByDestination())
	t.byDestination = req.GetByDestination()
	return t
}

// begin counts the beginning of a request, and returns its row. With what it
// is told, it is the same whether that comes from a layer or from a stream of
// events.
func (t *table) begin(about *Event, init *RequestInit) counted { return t.row(about, init) }

func (t *table) row(about *Event, init *RequestInit) *row {
	k := rowKey{direction: about.Direction}
	k.destination, k.to = nameOf(about.DestinationLabels, about.Destination)
	route := ""
	if !t.byDestination {
		k.source, k.from = nameOf(about.SourceLabels, about.Source)
		route = cut(about.RouteLabels[routeLabel])
	}
	switch {
	case t.byDestination:
	case t.byRoute:
		k.path = route
	default:
		k.method, k.path = cut(init.Method), cut(init.Path)
	}
	h := t.hash(&k)
	r := t.find(h, &k)
	if r == nil {
		r = t.add(h, &k, cut(init.Authority), route)
	}
	r.began.Add(1)
	return r
}

func (t *table) hash(k *rowKey) uint64 {
	h := mix(uint64(k.direction), maphash.String(t.seed, k.path))
	h = mix(h, maphash.String(t.seed, k.method))
	h = mix(h, t.hashName(k.source, k.from))
	return mix(h, t.hashName(k.destination, k.to))
}

func (t *table) hashName(name string, addr netip.Addr) uint64 {
	if name != "" || !addr.IsValid() {
		return maphash.String(t.seed, name)
	}
	b := addr.As16()
	return maphash.Bytes(t.seed, b[:])
}

// mix is not alike in a and b, so that a client is not its server.
func mix(a, b uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2⁶⁴ by the golden ratio
	a = (a ^ b) * odd
	return a ^ a>>32
}

// find returns nil if there is no such row.
func (t *table) find(hash uint64, k *rowKey) *row {
	for i := hash; ; i++ {
		r := t.slots[i%tableSlots].Load()
		if r == nil || r.key == *k {
			return r
		}
	}
}

// add makes the row, if there is room for it. Texts are copied: they may be a
// small part of a large buffer.
func (t *table) add(hash uint64, k *rowKey, authority, route string) *row {
	text := int64(len(k.source) + len(k.destination) + len(k.method) + len(k.path) + len(authority) + len(route))
	if !take(&t.free, 1) {
		return t.other
	}
	if !take(&t.room, text) {
		t.free.Add(1)
		return t.other
	}
	r := newRow(k)
	for _, s := range []*string{&r.key.source, &r.key.destination, &r.key.method, &r.key.path} {
		*s = strings.Clone(*s)
	}
	r.authority, r.route = strings.Clone(authority), strings.Clone(route)
	for i := hash; ; i++ {
		slot := &t.slots[i%tableSlots]
		if slot.CompareAndSwap(nil, r) {
			return r
		}
		if there := slot.Load(); there.key == *k { // somebody was faster
			t.free.Add(1)
			t.room.Add(text)
			return there
		}
	}
}

// take takes n from what is left, if there is so much.
func take(left *atomic.Int64, n int64) bool {
	if left.Load() < n { // the usual case of a full table changes nothing
		return false
	}
	if left.Add(-n) < 0 {
		left.Add(n)
		return false
	}
	return true
}

// all yields the rows there are; other only if it was needed.
func (t *table) all(yield func(*row) bool) {
	for i := range t.slots {
		if r := t.slots[i].Load(); r != nil && !yield(r) {
			return
		}
	}
	if t.other.began.Load() > 0 {
		yield(t.other)
	}
}
