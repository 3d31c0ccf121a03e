package tap

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/tap/tappb"
)

// naiveRow is a row that keeps everything.
type naiveRow struct {
	open      int
	times     []time.Duration
	ended     []time.Duration // when, since the beginning
	successes int
	used      time.Duration
	last      time.Duration
}

func (n *naiveRow) rate(age time.Duration) float64 {
	if age <= 0 {
		return 0
	}
	var sum float64
	for _, at := range n.ended {
		sum += math.Exp(-(age - at).Seconds() / 10)
	}
	return sum / (10 * (1 - math.Exp(-age.Seconds()/10)))
}

func (n *naiveRow) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(n.times))
	return sorted[max(int(math.Ceil(q*float64(len(sorted)))), 1)-1]
}

// naiveRows is a slow and simple eventCounter.
type naiveRows struct {
	rows map[string]*naiveRow
	ttl  time.Duration
	open map[StreamID]naiveOpen
}

type naiveOpen struct {
	row    string
	status int
}

// sample removes the rows that are not in use.
func (n *naiveRows) sample(age time.Duration) {
	maps.DeleteFunc(n.rows, func(_ string, r *naiveRow) bool { return r.open == 0 && age-r.used >= n.ttl })
}

func (n *naiveRows) add(e Event, age time.Duration) {
	o, ok := n.open[e.ID]
	switch {
	case e.RequestInit != nil:
		if ok {
			return // an event of an open request
		}
		r := n.rows[e.RequestInit.Path]
		if r == nil {
			r = &naiveRow{}
			n.rows[e.RequestInit.Path] = r
		}
		n.open[e.ID] = naiveOpen{row: e.RequestInit.Path}
		r.open++
		r.used = age
	case !ok:
	case e.ResponseInit != nil:
		n.open[e.ID] = naiveOpen{o.row, e.ResponseInit.Status}
	case e.ResponseEnd != nil:
		r := n.rows[o.row]
		r.open--
		r.used = age
		r.last = e.ResponseEnd.SinceRequestInit
		r.times = append(r.times, r.last)
		r.ended = append(r.ended, age)
		response := o.status != 0 || e.ResponseEnd.SinceResponseInit != nil
		if response && o.status < 500 && e.ResponseEnd.ResetCode == nil &&
			(e.ResponseEnd.GRPCStatus == nil || *e.ResponseEnd.GRPCStatus != codes.Internal) {
			r.successes++
		}
		delete(n.open, e.ID)
	}
}

// equal compares all rows.
func (n *naiveRows) equal(t require.TestingT, m *tappb.TopResponse, age time.Duration) {
	require.Len(t, m.GetRows(), len(n.rows))
	last := uint64(math.MaxUint64)
	for _, r := range m.GetRows() {
		want := n.rows[r.GetPath()]
		require.NotNil(t, want, r.GetPath())
		require.LessOrEqual(t, r.GetCount(), last)
		last = r.GetCount()
		require.EqualValues(t, len(want.times), r.GetCount())
		require.EqualValues(t, want.successes, r.GetSuccesses())
		require.EqualValues(t, want.open, r.GetOpen())
		// Requests that end within a sample count as spread over it: a second of ten.
		require.InDelta(t, want.rate(age), r.GetRate(), 0.06*want.rate(age)+1e-9)
		if len(want.times) == 0 {
			continue
		}
		require.Equal(t, slices.Min(want.times), r.GetBest().AsDuration())
		require.Equal(t, slices.Max(want.times), r.GetWorst().AsDuration())
		require.Equal(t, want.last, r.GetLast().AsDuration())
		require.InEpsilon(t, want.quantile(0.5), r.GetP50().AsDuration(), 0.05)
		require.InEpsilon(t, want.quantile(0.95), r.GetP95().AsDuration(), 0.05)
		require.InEpsilon(t, want.quantile(0.99), r.GetP99().AsDuration(), 0.05)
	}
}

// genStep is an event that may make no sense where it comes.
var genStep = rapid.Custom(func(t *rapid.T) Event {
	e := Event{ID: StreamID{Base: rapid.Uint32Range(0, 1).Draw(t, "base"), Stream: rapid.Uint64Range(0, 3).Draw(t, "stream")}}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		e.RequestInit = &RequestInit{Method: "GET", Path: fmt.Sprint("/", rapid.IntRange(0, 5).Draw(t, "path"))}
	case 1:
		e.ResponseInit = &ResponseInit{Status: rapid.SampledFrom([]int{200, 404, 500}).Draw(t, "status")}
	case 2:
		took := time.Duration(rapid.Int64Range(int64(time.Microsecond), int64(time.Minute)).Draw(t, "took"))
		e.ResponseEnd = &ResponseEnd{SinceRequestInit: took}
		e.ResponseEnd.SinceResponseInit = optional(t, "response", rapid.Just(time.Microsecond))
		e.ResponseEnd.ResetCode = optional(t, "reset", rapid.Just(uint32(8)))
		e.ResponseEnd.GRPCStatus = optional(t, "grpc", rapid.SampledFrom([]codes.Code{codes.OK, codes.Internal}))
	case 3:
		e.Dropped = 1
	}
	return e
})

// checkRows compares an eventCounter with a naive count of the same events.
func checkRows(t *testing.T, r require.TestingT, steps []Event, waits []int) {
	synctest.Test(t, func(*testing.T) {
		const ttl = 8 * time.Second
		rows := newEventCounter(nil)
		rows.rows.ttl = ttl
		model := naiveRows{rows: map[string]*naiveRow{}, ttl: ttl, open: map[StreamID]naiveOpen{}}
		start := time.Now()
		for i, e := range steps {
			rows.add(&e)
			model.add(e, time.Since(start))
			for range waits[i] {
				time.Sleep(500 * time.Millisecond)
				rows.rows.answer(maxRows + 1)
				model.sample(time.Since(start))
			}
		}
		time.Sleep(time.Second)
		model.sample(time.Since(start))
		model.equal(r, rows.rows.answer(0), time.Since(start))
		rows.endAll()
		time.Sleep(ttl)
		require.Empty(r, rows.rows.answer(0).GetRows())
	})
}

func TestRowsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(genStep, 0, 100).Draw(r, "steps")
		checkRows(t, r, steps, rapid.SliceOfN(rapid.IntRange(0, 5), len(steps), len(steps)).Draw(r, "waits"))
	})
}

// eventCounter counts the requests of events in a table.
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
	case e.RequestInit != nil && !ok:
		c.open[e.ID] = openRequest{row: c.rows.begin(e, e.RequestInit, "", time.Now())}
	case !ok:
	case e.ResponseInit != nil:
		o.status = e.ResponseInit.Status
		c.open[e.ID] = o
	case e.ResponseEnd != nil:
		if o.status == 0 && e.ResponseEnd.SinceResponseInit != nil {
			o.status = 200
		}
		o.row.end(e.ResponseEnd, o.status, time.Now())
		delete(c.open, e.ID)
	}
}

func (c *eventCounter) endAll() {
	for _, o := range c.open {
		o.row.end(&ResponseEnd{}, 0, time.Now())
	}
}
