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
	now     time.Time // when the last event arrived
	open    tap.Joiner[*record]
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
		j.count(now)
	}
	j.now = now
	if j.open.GiveUp == nil {
		j.open.Limit = maxOpen
		j.open.GiveUp = j.giveUp
	}
	r, ok := j.open.Join("", e, func() (*record, bool) { return j.begin(e) })
	if ok {
		r.add(e, now)
		j.change(r)
	}
}

// count counts a request that began at the time now, to find out if tap's limit was reached.
func (j *joiner) count(now time.Time) {
	if j.second != now.Unix() {
		j.second, j.started = now.Unix(), 0
	}
	j.started++
	j.limited = j.limited || j.started >= maxInspected
}

// change remembers that r must be sent again, if the page already has it.
func (j *joiner) change(r *record) {
	if r.shown && r.current {
		r.current = false
		j.changed = append(j.changed, r)
	}
}

// begin makes a record for the first event of a request. It returns false if the page has not taken
// the records of earlier requests yet.
func (j *joiner) begin(e *tap.Event) (*record, bool) {
	if len(j.fresh) >= maxFresh {
		j.skipped++
		return nil, false
	}
	r := newRecord(e, j.now)
	j.began++
	r.number = j.began
	j.fresh = append(j.fresh, r)
	return r, true
}

// giveUp makes room for another open record: it marks the oldest one as lost, because the page will
// not learn its end. It returns false if that record is younger than maxHeld.
func (j *joiner) giveUp(oldest *record) bool {
	if j.now.UnixMilli()-oldest.At < maxHeld.Milliseconds() {
		j.skipped++
		return false
	}
	oldest.Open = false
	oldest.Lost = true
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
	// The page gets a copy, because r changes further.
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
	// Failures first, each time from the latest to the earliest.
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
