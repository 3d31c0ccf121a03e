package view

import (
	"slices"
	"time"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// hello is the first event of the stream "live". It describes the process.
type hello struct {
	Title   string `json:"title"`
	Started int64  `json:"started"` // start of the process, in milliseconds since 1970
	Edition string `json:"edition"` // version of the page; a page with another version reloads
}

// frame is an event in the stream "live", which sends one frame a second. It contains all data
// that the page shows, except single requests. Durations are in nanoseconds.
type frame struct {
	// Span is how long the rows have been counted. It is 0 if requests cannot be counted.
	Span     time.Duration `json:"span"`
	Rows     []row         `json:"rows"`
	Omitted  uint64        `json:"omitted"` // number of rows that are not shown
	Routes   []row         `json:"routes"`
	Hidden   uint64        `json:"hidden"` // number of routes that are not shown
	Sum      sum           `json:"sum"`
	Points   []point       `json:"points"` // oldest first; the last point belongs to this frame
	Bars     bars          `json:"bars"`
	Missed   uint64        `json:"missed"` // number of events that the charts do not include
	Tree     *node         `json:"tree"`
	Problems []string      `json:"problems"`
}

// row is one row of the table of live requests, as JSON for the page. Rate is in requests per
// second, and P50, P95 and P99 are percentiles of the latency.
type row struct {
	Direction   string        `json:"direction"`
	Source      string        `json:"source"`
	Destination string        `json:"destination"`
	Authority   string        `json:"authority"`
	Method      string        `json:"method"`
	Path        string        `json:"path"`
	Route       string        `json:"route"`
	Count       uint64        `json:"count"`
	Successes   uint64        `json:"successes"`
	Rate        float64       `json:"rate"`
	Open        uint64        `json:"open"`
	P50         time.Duration `json:"p50"`
	P95         time.Duration `json:"p95"`
	P99         time.Duration `json:"p99"`
	Best        time.Duration `json:"best"`
	Worst       time.Duration `json:"worst"`
	Last        time.Duration `json:"last"`
}

// sum holds the totals over all rows that Config.Totals selects, including rows that are not
// shown.
type sum struct {
	Count     uint64  `json:"count"`
	Successes uint64  `json:"successes"`
	Open      uint64  `json:"open"`
	Rate      float64 `json:"rate"`
}

// point holds the values in the charts for one interval. Durations are in nanoseconds.
type point struct {
	At       int64         `json:"at"`       // time in milliseconds since 1970
	Rate     float64       `json:"rate"`     // ended requests per second
	Failures float64       `json:"failures"` // failed requests per second
	P50      time.Duration `json:"p50"`
	P95      time.Duration `json:"p95"`
	P99      time.Duration `json:"p99"`
	Longest  time.Duration `json:"longest"`
}

const (
	countedRows = 1003 // limit of a registry's rows, plus the rows "(other)" of the directions
	shownRows   = 200
)

// frame returns the next frame for the pages, with the rows in rsp, which may be nil. It also adds a
// point to the charts, so it must be called once per interval and not concurrently.
func (r *run) frame(rsp *tappb.TopResponse) frame {
	all := rsp.GetRows()
	counted := all
	// Totals limits the sums to one direction, so that a request is not counted again as an attempt: see Config.
	if d := r.config.Totals; d != 0 {
		counted = slices.DeleteFunc(slices.Clone(all), func(entry *tappb.Row) bool { return tap.Direction(entry.GetDirection()) != d })
	}
	var now sum
	for _, entry := range counted {
		now.Count += entry.GetCount()
		now.Successes += entry.GetSuccesses()
		now.Open += entry.GetOpen()
		now.Rate += entry.GetRate()
	}
	r.addPoint(counted, time.Now())
	// The rows are sorted: those with the most requests come first.
	shown := all[:min(len(all), shownRows)]
	f := frame{
		Span: rsp.GetSpan().AsDuration(), Rows: rows(shown), Omitted: rsp.GetOmitted() + uint64(len(all)-len(shown)), Sum: now,
		Points: r.points, Bars: r.latency.bars(), Missed: r.missed.Load(), Tree: describe(r.config.Describe), Problems: []string{},
	}
	routes := r.routes.Load()
	f.Routes, f.Hidden = rows(routes.GetRows()), routes.GetOmitted()
	// The same text for several parts is shown once.
	for _, p := range []*problem{&r.noRows, &r.noRoutes, &r.noLatency} {
		if s := p.get(); s != "" && !slices.Contains(f.Problems, s) {
			f.Problems = append(f.Problems, s)
		}
	}
	return f
}

// rows converts rows of a response to those of a page.
func rows(received []*tappb.Row) []row {
	out := make([]row, 0, len(received))
	for _, r := range received {
		out = append(out, row{
			Direction: tap.Direction(r.GetDirection()).String(),
			Source:    text(r.GetSource()), Destination: text(r.GetDestination()), Authority: text(r.GetAuthority()),
			Method: text(r.GetMethod()), Path: text(r.GetPath()), Route: text(r.GetRoute()),
			Count: r.GetCount(), Successes: r.GetSuccesses(), Rate: r.GetRate(), Open: r.GetOpen(),
			P50: r.GetP50().AsDuration(), P95: r.GetP95().AsDuration(), P99: r.GetP99().AsDuration(),
			Best: r.GetBest().AsDuration(), Worst: r.GetWorst().AsDuration(), Last: r.GetLast().AsDuration(),
		})
	}
	return out
}
