package view

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/tap"
)

// joiner joins events into records, and records into bounded batches.
type joiner struct {
	mu      sync.Mutex
	open    map[tap.StreamID]*record
	began   uint64
	fresh   []*record // not shown, in the order of their begin
	changed []*record // shown, and changed since
	skipped uint64    // never shown
	dropped uint64    // events that tap dropped
	lost    uint64    // of these, possible ends of open records
	second  int64     // the current second
	begun   int       // records of that second
	limited bool      // a second had as many records as tap shows
}

// Bounds of one page.
const (
	maxOpen  = 500 // concurrent requests
	maxFresh = 1000
	maxBatch = 25
)

// batch is one message to a page.
type batch struct {
	Records []record `json:"records"`
	Skipped uint64   `json:"skipped"` // since the start
	Dropped uint64   `json:"dropped"` // since the start
	Limit   int      `json:"limit"`   // inspected requests a second, if there were more; or 0
}

func (j *joiner) add(e *tap.Event, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropped += e.Dropped
	j.lost += e.Dropped
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

func (j *joiner) change(r *record) {
	if r.shown && r.current {
		r.current = false
		j.changed = append(j.changed, r)
	}
}

func (j *joiner) begin(e *tap.Event, now time.Time) {
	if j.second != now.Unix() {
		j.second, j.begun = now.Unix(), 0
	}
	j.begun++
	j.limited = j.limited || j.begun >= inspected
	if len(j.open) >= maxOpen && j.lost > 0 {
		j.giveUp()
	}
	if len(j.open) >= maxOpen || len(j.fresh) >= maxFresh {
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

// giveUp removes the oldest record, because its end may have been dropped.
func (j *joiner) giveUp() {
	j.lost--
	var id tap.StreamID
	var oldest *record
	for i, r := range j.open {
		if oldest == nil || r.number < oldest.number {
			id, oldest = i, r
		}
	}
	oldest.Open, oldest.Lost = false, true
	delete(j.open, id)
	j.change(oldest)
}

// take returns the next batch. Records that ended and did not fit are dropped.
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
		b.Limit = inspected
	}
	return b
}

// choose returns at most maxBatch fresh records in order of their begin. It
// prefers failures, and later records.
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
