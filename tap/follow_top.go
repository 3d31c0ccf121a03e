package tap

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	streams "github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap/tappb"
)

// FollowTop yields the rows of several processes as if they were one, at intervals. It
// continues when a process restarts, appears late or cannot be reached. Errors are
// items, as those of [Follow].
//
// Rows with the same key are added up. A quantile of the sum is the highest of its
// rows, so the true one is not higher. The field Last is taken from one of the rows. An
// outbound row without a known client gets the name of the process as its client. An
// inbound row without a known server gets that name as its server. The rows of a
// process are missing while
// it cannot be reached, and begin at 0 after a restart.
//
// The requests of a process with only linkerd's tap are counted from its events.
// [WithMaxRPS] limits the number of these, and so the rate that is shown. Such a
// process rejects conditions on headers.
func FollowTop(
	ctx context.Context, processes []Process, req *tappb.TopRequest, opts ...FollowOption,
) iter.Seq2[*tappb.TopResponse, error] {
	o := newFollowOptions(opts, len(processes))
	return func(yield func(*tappb.TopResponse, error) bool) {
		every, err := everyOf(req)
		if err != nil {
			yield(nil, reject(codes.InvalidArgument, err))
			return
		}
		if len(processes) == 0 {
			return
		}
		f := &topFollower{followOptions: o, req: req, every: every, rows: make([]rowsFunc, len(processes))}
		if f.follow(ctx, processes, yield) && ctx.Err() != nil {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

type topFollower struct {
	followOptions
	req   *tappb.TopRequest
	every time.Duration
	names []string
	rows  []rowsFunc // by process; nil while the process cannot be reached
}

// rowsFunc returns the current rows of a process.
type rowsFunc func() *tappb.TopResponse

// topUpdate is new rows of a process, its end, or a tick of the clock.
type topUpdate struct {
	process int // index in names and rows
	rows    rowsFunc
	gone    bool // the process will not be called again
	tick    bool // it is time to yield rows
}

// follow yields merged rows until ctx ends or no process is left. It returns false when
// yield returned false.
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
			if !yield(f.merge(), nil) {
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
		f.rows[news.process] = news.rows
	}
	return true
}

// clock yields a tick at each interval.
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

// followProcess yields the updates of one process, and reconnects after errors.
func (f *topFollower) followProcess(ctx context.Context, i int, p Process) iter.Seq2[topUpdate, error] {
	open := func(ctx context.Context) iter.Seq2[rowsFunc, error] {
		return containPanics(orIfUnimplemented(f.topRows(ctx, p), f.countEvents(ctx, p)))
	}
	return func(yield func(topUpdate, error) bool) {
		for rows, err := range streams.Reconnect(ctx, f.backoff, open, isFinal) {
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

// topRows calls Top of a process.
func (f *topFollower) topRows(ctx context.Context, p Process) iter.Seq2[rowsFunc, error] {
	return func(yield func(rowsFunc, error) bool) {
		if err := p.check(); err != nil {
			yield(nil, err)
			return
		}
		for m, err := range Top(ctx, p.Conn, f.req) {
			if !yield(func() *tappb.TopResponse { return m }, err) {
				return
			}
		}
	}
}

// countEvents counts the events of a process with only linkerd's tap. It yields its
// rowsFunc once, with the first event.
func (f *topFollower) countEvents(ctx context.Context, p Process) iter.Seq2[rowsFunc, error] {
	return func(yield func(rowsFunc, error) bool) {
		if what := beyondLinkerd(&tappb.WatchRequest{Headers: f.req.GetHeaders()}); what != "" {
			yield(nil, errBeyondLinkerd(what))
			return
		}
		c := newEventCounter(f.req)
		w := f.windows(p.Conn, f.req.GetMatch(), false)
		w.ended = c.forget
		first := true
		for e, err := range w.all(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			c.add(&e)
			if first && !yield(c.rows.all, nil) {
				return
			}
			first = false
		}
	}
}

// merge returns the sum of the current rows of all processes.
func (f *topFollower) merge() *tappb.TopResponse {
	m := newRowMerger()
	m.byDestination = f.req.GetByDestination()
	for i, rows := range f.rows {
		if rows != nil {
			m.add(f.names[i], rows())
		}
	}
	return m.top(f.req.GetRows())
}

// eventCounter counts the requests of a process from its events.
type eventCounter struct {
	rows *table
	open map[StreamID]openRequest
}

type openRequest struct {
	row    *row
	status int
}

func newEventCounter(req *tappb.TopRequest) *eventCounter {
	return &eventCounter{rows: newTable(req), open: map[StreamID]openRequest{}}
}

func (c *eventCounter) add(e *Event) {
	o, ok := c.open[e.ID]
	switch {
	case e.RequestInit != nil:
		if ok {
			o.row.forget()
		}
		c.open[e.ID] = openRequest{row: c.rows.begin(e, e.RequestInit, time.Now())}
	case !ok:
	case e.ResponseInit != nil:
		o.status = e.ResponseInit.Status
		c.open[e.ID] = o
	case e.ResponseEnd != nil:
		if o.status == 0 && e.ResponseEnd.SinceResponseInit != nil {
			o.status = 200 // the ResponseInit was dropped
		}
		o.row.end(e.ResponseEnd, o.status, time.Now())
		delete(c.open, e.ID)
	}
}

// forget drops the open requests, whose end will not arrive.
func (c *eventCounter) forget() {
	for _, o := range c.open {
		o.row.forget()
	}
	clear(c.open)
}

// rowMerger adds up the rows of several processes.
type rowMerger struct {
	byDestination bool // rows have no source

	rows    map[mergedKey]*tappb.Row
	span    time.Duration
	omitted uint64
}

type mergedKey struct {
	source, destination, method, path, route string
	direction                                pb.TapEvent_ProxyDirection
}

func newRowMerger() *rowMerger { return &rowMerger{rows: map[mergedKey]*tappb.Row{}} }

// add adds rows of the process with this name. It does not change rows.
func (m *rowMerger) add(process string, rows *tappb.TopResponse) {
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

// addRow adds the counts of r to sum.
func addRow(sum, r *tappb.Row) {
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

// rateOf returns the rate of r, or 0 if it is negative, infinite or not a number.
func rateOf(r *tappb.Row) float64 {
	if rate := r.GetRate(); rate >= 0 && !math.IsInf(rate, 1) {
		return rate
	}
	return 0
}

func longer(a, b *durationpb.Duration) *durationpb.Duration {
	if b.AsDuration() > a.AsDuration() || a == nil {
		return b
	}
	return a
}

// top returns the rows with the most requests, at most this many. 0 means 100.
func (m *rowMerger) top(most uint32) *tappb.TopResponse {
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

// compareNames makes the order of rows with equal counts stable.
func compareNames(a, b *tappb.Row) int {
	return cmp.Or(
		cmp.Compare(a.GetSource(), b.GetSource()), cmp.Compare(a.GetDestination(), b.GetDestination()),
		cmp.Compare(a.GetPath(), b.GetPath()), cmp.Compare(a.GetMethod(), b.GetMethod()),
		cmp.Compare(a.GetRoute(), b.GetRoute()), cmp.Compare(a.GetDirection(), b.GetDirection()),
	)
}
