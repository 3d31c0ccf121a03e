package tap

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// quota is what a process may still show, over all the times that it is asked.
type quota struct {
	req   *tappb.WatchRequest
	left  uint64            // requests, if req has a limit
	until time.Time         // zero is for ever
	open  map[StreamID]bool // connections that are told of twice
}

func newQuota(req *tappb.WatchRequest) *quota {
	if req == nil {
		req = &tappb.WatchRequest{}
	}
	q := &quota{req: req, left: req.GetLimit(), open: map[StreamID]bool{}}
	if d := req.GetDuration(); d != nil {
		q.until = time.Now().Add(d.AsDuration())
		if !d.IsValid() || d.AsDuration() <= 0 {
			q.until = time.Time{} // it will be refused
		}
	}
	return q
}

// count is told of every event.
func (q *quota) count(e Event) {
	switch {
	case q.left == 0:
		return
	case e.Open != nil:
		q.open[e.ID] = true
	case e.Close != nil && q.open[e.ID]:
		delete(q.open, e.ID)
		return
	case e.Close == nil && e.RequestInit == nil:
		return
	}
	q.left--
}

// rest is what to ask for now, nil if that is nothing.
func (q *quota) rest() *tappb.WatchRequest {
	left := time.Until(q.until)
	if q.req.GetLimit() > 0 && q.left == 0 || !q.until.IsZero() && left <= 0 {
		return nil
	}
	clear(q.open)
	req := proto.CloneOf(q.req)
	req.Limit = q.left
	if !q.until.IsZero() {
		req.Duration = durationpb.New(left)
	}
	return req
}
