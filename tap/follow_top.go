package tap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	streams "github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap/tappb"
)

// FollowTop yields the rows of several processes at intervals, added up as if they were one
// process. It continues while a process restarts, has not started yet or cannot be reached. It
// yields errors and ends as [Follow] does.
//
// Rows are added up if they agree in client, endpoint and direction, and in method and path, or
// route. P50, P95, P99 and Worst are the largest values among the rows, so a quantile is an upper
// bound. Last comes from one of the rows. An outbound row without a source gets the process name
// as its source, and an inbound row without a destination as its destination. Processes that
// cannot be reached do not count. A process's counts start from 0 after it restarts.
//
// The processes must serve gotower's tap, because linkerd's does not count requests.
func FollowTop(
	ctx context.Context, processes []Process, req *tappb.TopRequest,
) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		every, err := everyOf(req)
		if err != nil {
			yield(nil, reject(codes.InvalidArgument, err))
			return
		}
		if len(processes) == 0 {
			return
		}
		f := &topFollower{req: req, every: every, rows: make([]*tappb.TopResponse, len(processes))}
		if f.follow(ctx, processes, yield) && ctx.Err() != nil {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

// MergeTop adds up rows from several processes like [FollowTop]. It is useful if the set of
// processes changes. The keys of rows are the process names. req is the request that they
// answered.
func MergeTop(rows map[string]*tappb.TopResponse, req *tappb.TopRequest) *tappb.TopResponse {
	return mergeRows(maps.All(rows), req)
}

// mergeRows adds up the rows of several processes, by name.
func mergeRows(rows iter.Seq2[string, *tappb.TopResponse], req *tappb.TopRequest) *tappb.TopResponse {
	m := &rowMerger{byDestination: req.GetByDestination(), rows: map[mergedKey]*tappb.Row{}}
	for process, answer := range rows {
		m.add(process, answer)
	}
	return m.top(req.GetRows())
}

// topFollower is the state of one range over FollowTop's sequence: the latest rows of each process.
type topFollower struct {
	req   *tappb.TopRequest
	every time.Duration
	names []string
	rows  []*tappb.TopResponse // by index of the process; nil while it cannot be reached
}

// topUpdate is what topFollower receives: new rows of a process, the news that a process is not called
// again, or a tick of the clock.
type topUpdate struct {
	process int // index in names and rows
	rows    *tappb.TopResponse
	gone    bool // the process will not be called again
	tick    bool // it is time to yield rows
}

// follow yields the merged rows of all processes at each tick, and errors as they occur. It returns
// false if yield did, and true if ctx has ended or no process is called again.
func (f *topFollower) follow(ctx context.Context, processes []Process, yield func(*tappb.TopResponse, error) bool) bool {
	all := append(make([]source[topUpdate], 0, 1+len(processes)), f.clock)
	for i, p := range processes {
		f.names = append(f.names, p.Name)
		all = append(all, func(ctx context.Context) iter.Seq2[topUpdate, error] { return f.followProcess(ctx, i, p) })
	}
	running := len(processes)
	for news, err := range merged(ctx, all) {
		switch {
		case news.tick:
			if !yield(mergeRows(f.current, f.req), nil) {
				return false
			}
			continue
		case err != nil && !yield(nil, err):
			return false
		case news.gone:
			running--
		}
		if running == 0 {
			return true
		}
		// After an error there are no rows: the process does not count until it answers again.
		f.rows[news.process] = news.rows
	}
	return true
}

// clock yields a topUpdate with the field tick set, once per f.every, until ctx ends.
func (f *topFollower) clock(ctx context.Context) iter.Seq2[topUpdate, error] {
	return func(yield func(topUpdate, error) bool) {
		answers := time.NewTicker(f.every)
		defer answers.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-answers.C:
				if !yield(topUpdate{tick: true}, nil) {
					return
				}
			}
		}
	}
}

// followProcess yields the updates of the process p with the index i. It calls p again after errors.
// The last update says that p is gone.
func (f *topFollower) followProcess(ctx context.Context, i int, p Process) iter.Seq2[topUpdate, error] {
	open := func(ctx context.Context) iter.Seq2[*tappb.TopResponse, error] {
		return containPanics(f.topRows(ctx, p))
	}
	return func(yield func(topUpdate, error) bool) {
		for rows, err := range streams.Reconnect(ctx, followBackoff(), open, isFinal) {
			// An error goes to the caller's loop too, which may stop there. Otherwise Reconnect calls open again.
			if err != nil {
				err = fmt.Errorf("%s: %w", p.Name, err)
			}
			if !yield(topUpdate{process: i, rows: rows}, err) {
				return
			}
		}
		yield(topUpdate{process: i, gone: true}, nil)
	}
}

var errNoTop = errors.New("it does not serve gotower's tap, which counts requests")

// topRows calls Top of process p once, and yields its responses.
func (f *topFollower) topRows(ctx context.Context, p Process) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		if err := p.check(); err != nil {
			yield(nil, err)
			return
		}
		for m, err := range Top(ctx, p.Conn, f.req) {
			if status.Code(err) == codes.Unimplemented {
				err = fmt.Errorf("%w: %w", errNoTop, err)
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// current yields the name and the current rows of each process that can be reached.
func (f *topFollower) current(yield func(string, *tappb.TopResponse) bool) {
	for i, rows := range f.rows {
		if rows != nil && !yield(f.names[i], rows) {
			return
		}
	}
}

// rowMerger adds up the rows of several processes: those with the same mergedKey become one.
type rowMerger struct {
	byDestination bool // whether rows have no source

	rows    map[mergedKey]*tappb.Row
	span    time.Duration
	omitted uint64
}

// mergedKey is what the rows that are added up have in common.
type mergedKey struct {
	source, destination, method, path, route string
	direction                                pb.TapEvent_ProxyDirection
}

// add adds the rows of one process, which it does not change.
func (m *rowMerger) add(process string, rows *tappb.TopResponse) {
	m.span = max(m.span, rows.GetSpan().AsDuration())
	m.omitted += rows.GetOmitted()
	for _, r := range rows.GetRows() {
		source, destination := r.GetSource(), r.GetDestination()
		switch { // the missing side is the process itself
		case source == "" && !m.byDestination && r.GetDirection() == pb.TapEvent_OUTBOUND:
			source = process
		case destination == "" && r.GetDirection() == pb.TapEvent_INBOUND:
			destination = process
		}
		k := mergedKey{source, destination, r.GetMethod(), r.GetPath(), "", r.GetDirection()}
		if k.path == "" {
			k.route = r.GetRoute() // with a path, the route is that of the first request
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

// addRow adds r to sum. Counts and rates are added up. Of quantiles and Worst, the larger one is kept,
// which makes a quantile an upper bound.
func addRow(sum, r *tappb.Row) {
	// A row without ended requests has no durations.
	if r.GetCount() > 0 {
		sum.P50, sum.P95, sum.P99 = longer(sum.GetP50(), r.GetP50()), longer(sum.GetP95(), r.GetP95()), longer(sum.GetP99(), r.GetP99())
		sum.Worst = longer(sum.GetWorst(), r.GetWorst())
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

// rateOf returns the rate of r. It returns 0 if the rate is negative, infinite or not a
// number.
func rateOf(r *tappb.Row) float64 {
	if rate := r.GetRate(); rate >= 0 && !math.IsInf(rate, 1) {
		return rate
	}
	return 0
}

// longer returns the longer duration. nil is the shortest one.
func longer(a, b *durationpb.Duration) *durationpb.Duration {
	if b.AsDuration() > a.AsDuration() || a == nil {
		return b
	}
	return a
}

// top returns the merged rows with the most requests. limit is the maximum number of rows.
// 0 means 100.
func (m *rowMerger) top(limit uint32) *tappb.TopResponse {
	rows := make([]*tappb.Row, 0, len(m.rows))
	for _, r := range m.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *tappb.Row) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), compareNames(a, b))
	})
	n := min(len(rows), orDefault(int(min(limit, math.MaxInt32)), defaultRows))
	return &tappb.TopResponse{Span: durationpb.New(m.span), Rows: rows[:n], Omitted: m.omitted + uint64(len(rows)-n)}
}

// compareNames compares the names of two rows. It decides the order of rows with equal counts.
func compareNames(a, b *tappb.Row) int {
	return cmp.Or(
		cmp.Compare(a.GetSource(), b.GetSource()), cmp.Compare(a.GetDestination(), b.GetDestination()),
		cmp.Compare(a.GetPath(), b.GetPath()), cmp.Compare(a.GetMethod(), b.GetMethod()),
		cmp.Compare(a.GetRoute(), b.GetRoute()), cmp.Compare(a.GetDirection(), b.GetDirection()),
	)
}
