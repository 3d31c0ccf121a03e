package view

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// run has the data that all open pages show. It is created when the first page opens. When the last
// page closes, its goroutines are stopped, and the next page creates another run.
type run struct {
	config  Config
	latency latency
	frames  share.Latest[[]byte] // as JSON

	noRows, noRoutes, noLatency problem

	routes atomic.Pointer[tappb.TopResponse]
	missed atomic.Uint64 // number of events that latency does not include

	// The fields last, when and points are used only by publish.
	last   sum
	when   time.Time
	points []point
}

// problem is the error text for one part of the page. "" means that the part works.
type problem struct{ text atomic.Pointer[string] }

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

func (p *problem) get() string {
	if s := p.text.Load(); s != nil {
		return *s
	}
	return ""
}

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
		case e.ResponseEnd != nil:
			r.latency.add(e.ResponseEnd.SinceRequestInit)
		}
	}
	return nil
}

// pointsKept is the number of points in the charts.
const pointsKept = 120

// addPoint adds a point to the charts, for the interval from the previous point to the time in the
// argument at. The argument now has the totals of all rows at that time.
func (r *run) addPoint(now sum, at time.Time) {
	var ended, failed uint64
	if !r.when.IsZero() && now.Count >= r.last.Count {
		ended = now.Count - r.last.Count
		failed = ended - min(ended, now.Successes-min(now.Successes, r.last.Successes))
	}
	h := r.latency.endInterval(ended)
	p := point{
		At: at.UnixMilli(), P50: h.quantile(0.5), P95: h.quantile(0.95), P99: h.quantile(0.99), Longest: h.longest,
	}
	if passed := at.Sub(r.when).Seconds(); ended > 0 && passed > 0 {
		p.Rate, p.Failures = float64(ended)/passed, float64(failed)/passed
	}
	r.last, r.when = now, at
	if len(r.points) == pointsKept {
		r.points = append(r.points[:0], r.points[1:]...)
	}
	r.points = append(r.points, p)
}

var _ Source = (*tap.Registry)(nil)
