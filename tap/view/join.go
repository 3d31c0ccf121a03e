package view

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/tap"
)

// joiner joins the events of each request into a record for the page. Each open page has a joiner, from
// which its stream takes the new and changed records a few times per second.
type joiner struct {
	mu      sync.Mutex
	open    map[tap.StreamID]*record
	began   uint64
	fresh   []*record // records that have not been sent, oldest first
	changed []*record // records that have changed since they were sent
	skipped uint64    // number of records that were never sent
	dropped uint64    // number of events that tap dropped
	second  int64     // the current second since 1970
	started int       // number of records that started in that second
	limited bool      // whether started has reached maxInspected
}

// These are the limits for a page: the open records, the records that have not been sent yet, and
// the new records in one batch. If there are maxOpen open records, a new record replaces the
// oldest one, unless that has been open for less than maxHeld.
const (
	maxOpen  = 500 // concurrent requests
	maxHeld  = 10 * time.Second
	maxFresh = 1000
	maxBatch = 25
)

// batch is one event in the stream "tap". It contains the records that are new or have changed
// since the previous batch.
type batch struct {
	Records []record `json:"records"`
	Skipped uint64   `json:"skipped"` // number of requests not shown since the stream started
	Dropped uint64   `json:"dropped"` // number of events that tap dropped since the stream started
	Limit   int      `json:"limit"`   // maxInspected if it was reached, otherwise 0
}

// add adds an event, which arrived at the time now, to the record of its request.
func (j *joiner) add(e *tap.Event, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropped += e.Dropped
	if e.RequestInit != nil || e.Open != nil {
		j.begin(e, now)
		return
	}
	r := j.open[e.ID]
	if r == nil && e.Close != nil { // a failed dial
		j.begin(e, now)
		r = j.open[e.ID]
	}
	if r == nil {
		return
	}
	if r.add(e, now) {
		delete(j.open, e.ID)
	}
	j.change(r)
}

// change remembers that r must be sent again, if the page already has it.
func (j *joiner) change(r *record) {
	if r.shown && r.current {
		r.current = false
		j.changed = append(j.changed, r)
	}
}

// begin makes a record for the first event of a request, unless there are too many records.
func (j *joiner) begin(e *tap.Event, now time.Time) {
	if j.second != now.Unix() {
		j.second, j.started = now.Unix(), 0
	}
	j.started++
	j.limited = j.limited || j.started >= maxInspected
	if len(j.fresh) >= maxFresh || len(j.open) >= maxOpen && !j.dropOldest(now) {
		j.skipped++
		return
	}
	if j.open == nil {
		j.open = map[tap.StreamID]*record{}
	}
	r := newRecord(e, now)
	j.began++
	r.number = j.began
	j.open[e.ID] = r
	j.fresh = append(j.fresh, r)
}

// dropOldest makes room for another open record: it gives up the oldest one and marks it as lost,
// because the page will not learn its end. It returns false if that record is younger than maxHeld.
func (j *joiner) dropOldest(now time.Time) bool {
	var id tap.StreamID
	var oldest *record
	for i, r := range j.open {
		if oldest == nil || r.number < oldest.number {
			id, oldest = i, r
		}
	}
	if now.UnixMilli()-oldest.At < maxHeld.Milliseconds() {
		return false
	}
	oldest.Open, oldest.Lost = false, true
	delete(j.open, id)
	j.change(oldest)
	return true
}

// take returns the next batch: the records that have changed since they were sent, and up to maxBatch
// new ones. Other new records wait for a later batch while their request is open; those that have ended
// are never shown, and counted in Skipped.
func (j *joiner) take() batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := batch{Records: []record{}}
	for _, r := range j.changed {
		r.current = true
		b.Records = append(b.Records, *r)
	}
	j.changed = j.changed[:0]
	for _, r := range j.choose() {
		r.shown, r.current = true, true
		b.Records = append(b.Records, *r)
	}
	j.fresh = slices.DeleteFunc(j.fresh, func(r *record) bool {
		if !r.shown && !r.Open {
			j.skipped++
		}
		return r.shown || !r.Open
	})
	b.Skipped, b.Dropped = j.skipped, j.dropped
	if j.limited {
		b.Limit = maxInspected
	}
	return b
}

// choose selects the new records for the next batch, at most maxBatch: failures first, and the latest
// of each kind. The result is in the order in which the requests began.
func (j *joiner) choose() []*record {
	if len(j.fresh) <= maxBatch {
		return j.fresh
	}
	chosen := make([]*record, 0, maxBatch)
	for _, failed := range []bool{true, false} {
		for _, r := range slices.Backward(j.fresh) {
			if r.Failed == failed && len(chosen) < maxBatch {
				chosen = append(chosen, r)
			}
		}
	}
	slices.SortStableFunc(chosen, func(a, b *record) int { return cmp.Compare(a.number, b.number) })
	return chosen
}
