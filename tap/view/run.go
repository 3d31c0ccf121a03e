package view

import (
	"context"
	"sync/atomic"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// run is the state from which the frames for all open pages are made. It lives from the first page's
// opening to the last page's closing.
type run struct {
	config  Config
	latency latency
	frames  share.Latest[[]byte] // as JSON

	noRows, noRoutes, noLatency problem

	routes atomic.Pointer[tappb.TopResponse]
	missed atomic.Uint64 // number of events that latency does not include

	// The fields last, when and points are used only by publish.
	last   map[rowID]*tappb.Row
	when   time.Time
	points []point
}

// problem is the error text for one part of the page. "" means that the part works.
type problem struct{ text atomic.Pointer[string] }

// set stores the text of err, or "" if err is nil, for the page.
func (p *problem) set(err error) {
	s := ""
	if err != nil {
		s = text(err.Error())
		if status.Code(err) == codes.ResourceExhausted {
			s += " (close another page or tap)"
		}
	}
	if s != p.get() {
		p.text.Store(&s)
	}
}

// get returns the text of the last error, or "" if there is none.
func (p *problem) get() string {
	if s := p.text.Load(); s != nil {
		return *s
	}
	return ""
}

// countRoutes keeps the rows by route up to date, until ctx ends.
func (r *run) countRoutes(ctx context.Context) error {
	for rsp, err := range r.config.Registry.Top(ctx, &tappb.TopRequest{ByRoute: true, Rows: shownRows}) {
		if err != nil {
			return err
		}
		r.routes.Store(rsp)
	}
	return nil
}

// latencySample is the maximum number of requests a second that are measured for latency.
const latencySample = 2000

// measure watches requests until ctx ends. It adds the duration of each response to r.latency.
func (r *run) measure(ctx context.Context) error {
	for e, err := range r.config.Registry.Watch(ctx, &tappb.WatchRequest{MaxRps: latencySample}) {
		switch {
		case err != nil:
			return err
		case e.Dropped > 0:
			r.missed.Add(e.Dropped)
		case e.ResponseEnd != nil && (r.config.Totals == 0 || r.config.Totals == e.Direction):
			r.latency.add(e.ResponseEnd.SinceRequestInit)
		}
	}
	return nil
}

// pointsKept is the number of points in the charts. Older ones are dropped.
const pointsKept = 120

// rowID identifies a row in successive responses of Top.
type rowID struct {
	direction                         pb.TapEvent_ProxyDirection
	source, destination, method, path string
}

// ended returns how many requests have ended since its last call, and how many of them have failed.
// rows are all current rows. It compares each row with its former counts instead of comparing sums,
// because the registry may have removed rows meanwhile.
func (r *run) ended(rows []*tappb.Row) (ended, failed uint64) {
	last := r.last
	r.last = make(map[rowID]*tappb.Row, len(rows))
	for _, now := range rows {
		id := rowID{now.GetDirection(), now.GetSource(), now.GetDestination(), now.GetMethod(), now.GetPath()}
		r.last[id] = now
		before := last[id]
		if now.GetCount() < before.GetCount() {
			before = nil // the row was removed meanwhile, and counts from 0 again
		}
		n := now.GetCount() - before.GetCount()
		ended += n
		// min keeps the unsigned differences from falling below 0.
		failed += n - min(n, now.GetSuccesses()-min(now.GetSuccesses(), before.GetSuccesses()))
	}
	return ended, failed
}

// addPoint adds a point to the charts, for the interval from the previous point to at. rows holds
// all rows at that time.
func (r *run) addPoint(rows []*tappb.Row, at time.Time) {
	ended, failed := r.ended(rows)
	h := r.latency.endInterval(ended)
	p := point{
		At: at.UnixMilli(), P50: h.quantile(0.5), P95: h.quantile(0.95), P99: h.quantile(0.99), Longest: h.longest,
	}
	if passed := at.Sub(r.when).Seconds(); !r.when.IsZero() && passed > 0 {
		p.Rate, p.Failures = float64(ended)/passed, float64(failed)/passed
	}
	r.when = at
	// Drop the oldest point.
	if len(r.points) == pointsKept {
		r.points = append(r.points[:0], r.points[1:]...)
	}
	r.points = append(r.points, p)
}

var _ Source = (*tap.Registry)(nil)
