package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap/tappb"
)

// column describes one column in top's table.
type column struct {
	title string
	width int  // in a printed table, as in `linkerd viz top`
	tight int  // usual width on a screen
	least int  // smallest width on a narrow screen; 0: width is fixed
	right bool // the values are aligned to the right
	value func(*tappb.Row) string
	// before compares two rows by this column, as the argument of slices.SortFunc. It
	// returns a negative number if a is shown before b.
	before func(a, b *tappb.Row) int
}

// shown holds the properties of a table that determine its columns, such as whether there are
// sources.
type shown struct {
	hideSources, routes bool
	direction           bool // the rows have both directions
	wide                bool // includes columns that `linkerd viz top` lacks
}

// columns returns the columns that s selects, from left to right.
func columns(s shown) []column {
	// The columns depend on what the rows contain, and on the flags.
	var all []column
	if !s.hideSources {
		all = append(all, named("Source", 23, 6, (*tappb.Row).GetSource))
	}
	all = append(all, named("Destination", 23, 11, (*tappb.Row).GetDestination))
	if s.direction {
		all = append(all, named("Dir", 3, 3, direction))
	}
	if s.routes {
		all = append(all, named("Route", 47, 12, (*tappb.Row).GetRoute))
	} else {
		all = append(all, named("Method", 10, 6, (*tappb.Row).GetMethod), named("Path", 37, 12, (*tappb.Row).GetPath))
	}
	all = append(all, number("Count", 6, func(r *tappb.Row) float64 { return float64(r.GetCount()) },
		func(r *tappb.Row) string { return strconv.FormatUint(r.GetCount(), 10) }))
	if s.wide {
		all = append(all,
			number("Open", 5, func(r *tappb.Row) float64 { return float64(r.GetOpen()) },
				func(r *tappb.Row) string { return strconv.FormatUint(r.GetOpen(), 10) }),
			number("RPS", 5, (*tappb.Row).GetRate, func(r *tappb.Row) string { return text.Rate(r.GetRate()) }))
	}
	all = append(all, latency("Best", (*tappb.Row).GetBest))
	if s.wide {
		all = append(all, latency("P50", (*tappb.Row).GetP50), latency("P95", (*tappb.Row).GetP95), latency("P99", (*tappb.Row).GetP99))
	}
	return append(all, latency("Worst", (*tappb.Row).GetWorst), latency("Last", (*tappb.Row).GetLast), successRate())
}

// named returns a column with a name, sorted alphabetically. width is that of a printed table. minWidth is the usual
// width on a screen, and also how narrow the column may become there.
func named(title string, width, minWidth int, value func(*tappb.Row) string) column {
	clean := func(r *tappb.Row) string { return text.Clean(value(r)) }
	return column{
		title: title, width: width, tight: minWidth, least: minWidth, value: clean,
		before: func(a, b *tappb.Row) int { return cmp.Compare(value(a), value(b)) },
	}
}

// number returns a column with a number, sorted from the largest.
func number(title string, width int, value func(*tappb.Row) float64, show func(*tappb.Row) string) column {
	return column{
		title: title, width: width, tight: width, right: true, value: show,
		before: func(a, b *tappb.Row) int { return cmp.Compare(value(b), value(a)) },
	}
}

// latency returns a column with a duration, sorted from the longest. Rows without ended requests come last.
func latency(title string, value func(*tappb.Row) *durationpb.Duration) column {
	took := func(r *tappb.Row) float64 {
		// -1 is less than any latency.
		if r.GetCount() == 0 {
			return -1
		}
		return float64(value(r).AsDuration())
	}
	c := number(title, 6, took, func(r *tappb.Row) string {
		if r.GetCount() == 0 {
			return "-"
		}
		return text.Duration(value(r).AsDuration())
	})
	c.tight = 5
	return c
}

// successRate returns the column with the success rate. In a table that is sorted by it, the
// lowest rate comes first, and rows without ended requests come last.
func successRate() column {
	share := func(r *tappb.Row) float64 {
		if r.GetCount() == 0 {
			// 2 is more than any rate.
			return 2
		}
		return float64(r.GetSuccesses()) / float64(r.GetCount())
	}
	return column{
		title: "Success Rate", width: 12, tight: 12, right: true,
		value:  func(r *tappb.Row) string { return text.Percent(r.GetSuccesses(), r.GetCount()) },
		before: func(a, b *tappb.Row) int { return cmp.Compare(share(a), share(b)) },
	}
}

// direction returns the short name of the row's direction.
func direction(r *tappb.Row) string {
	switch r.GetDirection() {
	case pb.TapEvent_INBOUND:
		return "in"
	case pb.TapEvent_OUTBOUND:
		return "out"
	default:
		return "?"
	}
}

// key returns a string that identifies the row r. A row's key is the same in all updates.
func key(r *tappb.Row) string {
	return fmt.Sprintf("%q %q %q %q %q %d", r.GetSource(), r.GetDestination(), r.GetMethod(), r.GetPath(), byRoute(r), r.GetDirection())
}

// byRoute returns r's route, if r counts one route's requests. If r counts one path's requests,
// it returns "", because these may have different routes.
func byRoute(r *tappb.Row) string {
	if r.GetPath() == "" {
		return r.GetRoute()
	}
	return ""
}

// sorted sorts rows in place by the column c. Equal rows keep their order, so that they do
// not move from one update to the next.
func sorted(rows []*tappb.Row, c *column, reverse bool) {
	slices.SortStableFunc(rows, func(a, b *tappb.Row) int {
		if reverse {
			return c.before(b, a)
		}
		return c.before(a, b)
	})
}

// withoutSources combines rows that differ only in their source into one row with the sums,
// without a source. It does not change the argument.
func withoutSources(rows []*tappb.Row) []*tappb.Row {
	sums := map[string]*tappb.Row{}
	var out []*tappb.Row
	// Copy, because the rows belong to the answer.
	for _, r := range rows {
		r := &tappb.Row{
			Destination: r.GetDestination(), Method: r.GetMethod(), Path: r.GetPath(), Route: r.GetRoute(),
			Authority: r.GetAuthority(), Direction: r.GetDirection(),
			Count: r.GetCount(), Successes: r.GetSuccesses(), Rate: r.GetRate(), Open: r.GetOpen(),
			P50: r.GetP50(), P95: r.GetP95(), P99: r.GetP99(), Best: r.GetBest(), Worst: r.GetWorst(), Last: r.GetLast(),
		}
		if sum := sums[key(r)]; sum != nil {
			add(sum, r)
			continue
		}
		sums[key(r)] = r
		out = append(out, r)
	}
	// The most frequent requests come first, as in the answers of processes.
	slices.SortStableFunc(out, func(a, b *tappb.Row) int { return cmp.Compare(b.GetCount(), a.GetCount()) })
	return out
}

// add adds r's counts to sum. Each quantile in sum becomes the larger of both values, which is an
// upper bound for the true quantile.
func add(sum, r *tappb.Row) {
	// A row without ended requests has no best latency.
	if sum.GetCount() == 0 || r.GetCount() > 0 && shorter(r.GetBest(), sum.GetBest()) {
		sum.Best = r.GetBest()
	}
	sum.P50 = longer(sum.GetP50(), r.GetP50())
	sum.P95 = longer(sum.GetP95(), r.GetP95())
	sum.P99 = longer(sum.GetP99(), r.GetP99())
	sum.Worst = longer(sum.GetWorst(), r.GetWorst())
	// Which of the two was last is not known, so that of sum stays.
	if sum.GetLast() == nil {
		sum.Last = r.GetLast()
	}
	sum.Count += r.GetCount()
	sum.Successes += r.GetSuccesses()
	sum.Rate += r.GetRate()
	sum.Open += r.GetOpen()
}

// shorter reports whether a is shorter than b.
func shorter(a, b *durationpb.Duration) bool { return a.AsDuration() < b.AsDuration() }

// longer returns the longer of two durations.
func longer(a, b *durationpb.Duration) *durationpb.Duration {
	if shorter(a, b) {
		return b
	}
	return a
}

// milliseconds returns d as a number of milliseconds, rounded to a microsecond.
func milliseconds(d *durationpb.Duration) float64 {
	return float64(d.AsDuration().Round(time.Microsecond).Microseconds()) / 1000
}
