package view

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/tap"
)

// joiner makes records of events, and batches of records, which are bounded for
// any number of requests.
type joiner struct {
	mu      sync.Mutex
	open    map[tap.StreamID]*record
	began   uint64
	fresh   []*record // in the order of their begin: neither shown nor let go
	changed []*record // shown, and changed since
	skipped uint64    // let go without having been shown
	dropped uint64    // events that tap dropped
	ghosts  uint64    // of these, possible ends of open records
	second  int64     // of now, and what began in it
	inIt    int
	limited bool // once there were as many as tap shows in a second
}

// Bounds of one page.
const (
	maxOpen  = 500 // requests that are followed at a time
	maxFresh = 1000
	maxBatch = 25
)

// batch is one message to a page.
type batch struct {
	Records []record `json:"records"`
	Skipped uint64   `json:"skipped"` // since the start
	Dropped uint64   `json:"dropped"` // likewise
	Limit   int      `json:"limit"`   // requests a second that are looked at, once there were more; or 0
}

func (j *joiner) add(e *tap.Event, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropped += e.Dropped
	j.ghosts += e.Dropped
	if e.RequestInit != nil || e.Open != nil {
		j.begin(e, now)
		return
	}
	r := j.open[e.ID]
	if r == nil && e.Close != nil { // a connection that could not be made
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
	if r.shown && r.told {
		r.told = false
		j.changed = append(j.changed, r)
	}
}

func (j *joiner) begin(e *tap.Event, now time.Time) {
	if j.second != now.Unix() {
		j.second, j.inIt = now.Unix(), 0
	}
	j.inIt++
	j.limited = j.limited || j.inIt >= lookedAt
	if len(j.open) >= maxOpen && j.ghosts > 0 {
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

// giveUp makes room where the end of a request may have been dropped: without,
// those that never end here would keep all others out.
func (j *joiner) giveUp() {
	j.ghosts--
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
		r.told = true
		b.Records = append(b.Records, *r)
	}
	j.changed = j.changed[:0]
	for _, r := range j.choose() {
		r.shown, r.told = true, true
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
		b.Limit = lookedAt
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
