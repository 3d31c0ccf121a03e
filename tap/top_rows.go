package tap

import (
	"sync"
	"time"

	"github.com/gotower/gotower/tap/tappb"
)

// maxOpen bounds the requests of which Rows wait for the end.
const maxOpen = 10_000

// Rows count requests as [Registry.Top] does, from events: for processes that
// show events and count nothing, such as linkerd's proxy. They are safe for
// concurrent use, start no goroutine, and need no closing.
type Rows struct {
	rows *table
	most uint32

	mu   sync.Mutex
	open map[openID]openRequest
}

type openID struct {
	from string
	id   StreamID
}

type openRequest struct {
	row    *row
	status int
}

// RowsOption sets what [NewRows] lets be set.
type RowsOption interface{ applyRows(r *Rows) }

// NewRows returns Rows that have nothing counted yet. Of req, which may be nil,
// they read ByRoute, ByDestination and Rows; what to count is up to who adds.
func NewRows(req *tappb.TopRequest, opts ...RowsOption) *Rows {
	r := &Rows{rows: tableOf(req, 0), most: req.GetRows(), open: map[openID]openRequest{}}
	for _, opt := range opts {
		if opt != nil {
			opt.applyRows(r)
		}
	}
	return r
}

// Add counts what e tells. The events of a request must come in their order,
// and all with the same name of the process that they are from. That name
// stands for the client of outbound requests where nothing is known of it, and
// for the server of inbound ones. No more than 10000 requests are waited for:
// beyond that, the end of some is missed.
func (r *Rows) Add(from string, e Event) {
	id := openID{from, e.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.RequestInit != nil:
		r.forget(id)
		r.bound()
		nameProcess(from, &e)
		r.open[id] = openRequest{row: r.rows.row(&e, e.RequestInit)}
	case e.ResponseInit != nil:
		if o, ok := r.open[id]; ok {
			o.status = e.ResponseInit.Status
			r.open[id] = o
		}
	case e.ResponseEnd != nil:
		o, ok := r.open[id]
		if !ok {
			return
		}
		if o.status == 0 && e.ResponseEnd.SinceResponseInit != nil {
			o.status = 200 // there was a response, of which the event was lost
		}
		o.row.end(e.ResponseEnd, o.status)
		delete(r.open, id)
	}
}

// nameProcess has the process stand for the address that is its own, if that
// is not known.
func nameProcess(from string, e *Event) {
	switch {
	case from == "":
	case e.Direction == Outbound && !e.Source.IsValid() && e.SourceLabels[podLabel] == "":
		e.SourceLabels = map[string]string{podLabel: from}
	case e.Direction == Inbound && !e.Destination.IsValid() && e.DestinationLabels[podLabel] == "":
		e.DestinationLabels = map[string]string{podLabel: from}
	}
}

// Forget says that the end of a request will not be told.
func (r *Rows) Forget(from string, id StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(openID{from, id})
}

func (r *Rows) forget(id openID) {
	if o, ok := r.open[id]; ok {
		o.row.forget()
		delete(r.open, id)
	}
}

// bound makes room for one more, at the cost of any.
func (r *Rows) bound() {
	for id := range r.open {
		if len(r.open) < maxOpen {
			return
		}
		r.forget(id)
	}
}

// Top is the rows as they are now. Call it about once a second: what ended since
// the last time counts into the rate as spread over that time.
func (r *Rows) Top() *tappb.TopResponse { return r.answer(r.most) }

func (r *Rows) answer(most uint32) *tappb.TopResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rows.answer(time.Now(), most)
}

func (r *Rows) sample(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows.sample(now)
}
