package tap

import (
	"cmp"
	"math"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

// merging adds up the rows of several processes.
type merging struct {
	byDestination bool // sources are none of a row

	rows    map[mergedKey]*tappb.Row
	span    time.Duration
	omitted uint64
}

type mergedKey struct {
	source, destination, method, path, route string
	direction                                pb.TapEvent_ProxyDirection
}

func newMerging() *merging { return &merging{rows: map[mergedKey]*tappb.Row{}} }

// add adds the rows of the process of this name. It does not change them.
func (m *merging) add(process string, rows *tappb.TopResponse) {
	m.span = max(m.span, rows.GetSpan().AsDuration())
	m.omitted += rows.GetOmitted()
	for _, r := range rows.GetRows() {
		source, destination := r.GetSource(), r.GetDestination()
		switch {
		case source == "" && !m.byDestination && r.GetDirection() == pb.TapEvent_OUTBOUND:
			source = process
		case destination == "" && r.GetDirection() == pb.TapEvent_INBOUND:
			destination = process
		}
		k := mergedKey{source, destination, r.GetMethod(), r.GetPath(), "", r.GetDirection()}
		if k.path == "" {
			k.route = r.GetRoute() // else it is what the first request had
		}
		if sum := m.rows[k]; sum != nil {
			addRow(sum, r)
			continue
		}
		r = proto.CloneOf(r)
		r.Source, r.Destination, r.Rate = source, destination, rateOf(r)
		m.rows[k] = r
	}
}

// addRow adds r to sum.
func addRow(sum, r *tappb.Row) {
	if r.GetCount() > 0 {
		sum.P50, sum.P95, sum.P99 = later(sum.GetP50(), r.GetP50()), later(sum.GetP95(), r.GetP95()), later(sum.GetP99(), r.GetP99())
		sum.Worst = later(sum.GetWorst(), r.GetWorst())
		if sum.GetCount() == 0 || r.GetBest().AsDuration() < sum.GetBest().AsDuration() {
			sum.Best = r.GetBest()
		}
		sum.Last = r.GetLast()
	}
	sum.Count += r.GetCount()
	sum.Successes += r.GetSuccesses()
	sum.Rate += rateOf(r)
	sum.Open += r.GetOpen()
}

// rateOf is 0 for what is no rate, and would spoil the sum of all.
func rateOf(r *tappb.Row) float64 {
	if rate := r.GetRate(); rate >= 0 && !math.IsInf(rate, 1) {
		return rate
	}
	return 0
}

func later(a, b *durationpb.Duration) *durationpb.Duration {
	if b.AsDuration() > a.AsDuration() || a == nil {
		return b
	}
	return a
}

// top is those with the most requests.
func (m *merging) top(most uint32) *tappb.TopResponse {
	rows := make([]*tappb.Row, 0, len(m.rows))
	for _, r := range m.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *tappb.Row) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), compareNames(a, b))
	})
	n := min(len(rows), orDefault(int(most), defaultRows))
	return &tappb.TopResponse{Span: durationpb.New(m.span), Rows: rows[:n], Omitted: m.omitted + uint64(len(rows)-n)}
}

// compareNames puts rows that are otherwise alike in an order that stays.
func compareNames(a, b *tappb.Row) int {
	return cmp.Or(
		cmp.Compare(a.GetSource(), b.GetSource()), cmp.Compare(a.GetDestination(), b.GetDestination()),
		cmp.Compare(a.GetPath(), b.GetPath()), cmp.Compare(a.GetMethod(), b.GetMethod()),
		cmp.Compare(a.GetRoute(), b.GetRoute()), cmp.Compare(a.GetDirection(), b.GetDirection()),
	)
}
