package tap

import (
	"cmp"
	"slices"
	"time"
)

const (
	// defaultKeep is two rounds of what runs every five minutes: the row of a
	// job that still runs is there whenever somebody looks.
	defaultKeep = RowTTL(10 * time.Minute)

	// leastKeep is how long a row stays though there is no room for others: by
	// then its rate shows as nought.
	leastKeep = time.Minute

	// mostMade bounds how many rows make room at a time.
	mostMade = maxRows / 8
)

// RowTTL is how long a row of Top stays without a request. It is a
// [RegistryOption], for [Registry.Top] and those who ask from afar, and a
// [FollowOption] and a [RowsOption] for rows that are counted where they are
// read. The default is 10 minutes, also for what is 0 or less. See [Registry.Top].
type RowTTL time.Duration

func (k RowTTL) applyRegistry(r *Registry)    { r.keepRows = k }
func (k RowTTL) applyFollow(o *followOptions) { o.keepRows = k }
func (k RowTTL) applyRows(r *Rows)            { r.rows.stay = k.stay() }

// stay is how long rows stay without a request: when others need no room, and
// when they do.
type stay struct{ long, short time.Duration }

func (k RowTTL) stay() stay {
	if k <= 0 {
		k = defaultKeep
	}
	return stay{long: time.Duration(k), short: min(time.Duration(k), leastKeep)}
}

// letGo ends rows that had no request for long, as of this age of the table. If
// there was no room for others since the last time, it ends as many as may have
// wanted it, of those that had none for longest.
func (t *table) letGo(age time.Duration) {
	began := t.other.began.Load()
	wanted := int64(began - t.turnedAway) // those forgotten count against it
	t.turnedAway = began

	least := t.stay.long
	if wanted > 0 {
		least = t.stay.short
	}
	var idle []*row
	for r := range t.slots.Load().all {
		if r.used > 0 && age-r.used >= least {
			idle = append(idle, r)
		}
	}
	if len(idle) == 0 {
		return
	}
	slices.SortFunc(idle, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.counted, b.counted), compareKeys(&a.key, &b.key))
	})
	n := int(max(min(wanted, mostMade), 0))
	for n < len(idle) && age-idle[n].used >= t.stay.long {
		n++
	}
	t.drop(idle[:min(n, len(idle))])
}

// drop ends those of rows that are still not in use. What they counted goes to
// other, so that the sum of all rows never falls.
func (t *table) drop(rows []*row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range rows {
		// Once it is marked, who found it before begins elsewhere; and nobody
		// is inside who could change it.
		if !r.began.CompareAndSwap(r.counted, r.counted|gone) {
			continue
		}
		t.other.absorb(r)
		t.turnedAway += r.counted
		t.free.Add(1)
		t.room.Add(r.key.text() + int64(len(r.authority)+len(r.route)))
	}
	left := new(slots)
	for r := range t.slots.Load().all {
		if r.began.Load()&gone == 0 {
			left.put(r)
		}
	}
	t.slots.Store(left)
}

// absorb adds what a row counted that is gone. Requests may be changing r.
func (r *row) absorb(from *row) {
	if from.counted == 0 {
		return
	}
	r.times.absorb(&from.times)
	r.within(from.best.Load(), from.worst.Load())
	if last := r.last.Load(); r.ends.Load() == r.seen && (r.counted == 0 || from.ended > r.ended) {
		r.last.CompareAndSwap(last, from.last.Load())
		r.ended = from.ended
	}
	r.began.Add(from.counted)
	r.counted += from.counted
	r.failed += from.failed
	r.recent += from.recent
}
