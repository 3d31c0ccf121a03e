package tap

import (
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
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

// table is rows that requests find without a lock. When it is full, the rest is
// counted in other, and so is what was in rows that were let go.
type table struct {
	byRoute       bool
	byDestination bool // and by nothing else but the direction
	seed          maphash.Seed
	other         *row

	// mu is held to add rows and to let them go. What is here is read without.
	mu    sync.Mutex
	slots atomic.Pointer[slots]
	free  atomic.Int64 // rows that may still be added
	room  atomic.Int64 // bytes of text that still fit

	// Of who reads, as is what the rows have of who reads.
	start, sampled time.Time
	stay           stay
	turnedAway     uint64 // of what began in other, at the last sample
}

// slots is an open hash table to which rows are added and from which none is
// taken: without those that are let go, it is made anew.
type slots [tableSlots]atomic.Pointer[row]

func newTable(byRoute bool) *table {
	now := time.Now()
	t := &table{
		byRoute: byRoute, seed: maphash.MakeSeed(), other: newRow(&rowKey{path: otherRow}, 0),
		start: now, sampled: now, stay: RowTTL(0).stay(),
	}
	t.slots.Store(new(slots))
	t.free.Store(maxRows)
	t.room.Store(maxTableText)
	return t
}

// tableOf is an empty table of the rows that req asks for.
func tableOf(req *tappb.TopRequest, keep RowTTL) *table {
	t := newTable(req.GetByRoute() && !req.GetByDestination())
	t.byDestination = req.GetByDestination()
	t.stay = keep.stay()
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
	r := t.slots.Load().find(h, &k)
	if r == nil || !r.enter() {
		r = t.add(h, &k, cut(init.Authority), route)
	}
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
func (s *slots) find(hash uint64, k *rowKey) *row {
	for i := hash; ; i++ {
		r := s[i%tableSlots].Load()
		if r == nil || r.key == *k {
			return r
		}
	}
}

// put adds a row that is not there.
func (s *slots) put(r *row) {
	i := r.hash
	for s[i%tableSlots].Load() != nil {
		i++
	}
	s[i%tableSlots].Store(r)
}

// add counts a beginning in a row that was not found. It makes the row, if there
// is room for it. Texts are copied: they may be a small part of a large buffer.
func (t *table) add(hash uint64, k *rowKey, authority, route string) *row {
	text := k.text() + int64(len(authority)+len(route))
	if !t.fits(text) { // the usual case of a full table takes no lock
		t.other.enter()
		return t.other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots.Load()
	if r := s.find(hash, k); r != nil { // somebody was faster
		r.enter() // rows are let go under the lock alone
		return r
	}
	if !t.fits(text) {
		t.other.enter()
		return t.other
	}
	t.free.Add(-1)
	t.room.Add(-text)
	r := newRow(k, hash)
	for _, s := range []*string{&r.key.source, &r.key.destination, &r.key.method, &r.key.path} {
		*s = strings.Clone(*s)
	}
	r.authority, r.route = strings.Clone(authority), strings.Clone(route)
	r.enter() // before anybody looks: what has not begun is not in use
	s.put(r)
	return r
}

// fits reports whether there is room for one more row with so many bytes of text.
func (t *table) fits(text int64) bool { return t.free.Load() > 0 && t.room.Load() >= text }

func (k *rowKey) text() int64 {
	return int64(len(k.source) + len(k.destination) + len(k.method) + len(k.path))
}

// all yields the rows there are; other only if it was needed.
func (t *table) all(yield func(*row) bool) {
	for r := range t.slots.Load().all {
		if !yield(r) {
			return
		}
	}
	if t.other.began.Load() > 0 {
		yield(t.other)
	}
}

func (s *slots) all(yield func(*row) bool) {
	for i := range s {
		if r := s[i].Load(); r != nil && !yield(r) {
			return
		}
	}
}
