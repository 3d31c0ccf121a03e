package tap

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
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
	looked    int // of times, at the last sample
	last      time.Duration
	seen      time.Duration // when the sample was that saw it
}

// absorb makes n older by another row.
func (n *naiveRow) absorb(from *naiveRow) {
	n.times, n.ended = append(slices.Clone(from.times), n.times...), append(slices.Clone(from.ended), n.ended...)
	if len(from.times) > 0 && (len(n.times) == len(from.times) || from.seen > n.seen) {
		n.last, n.seen = from.last, from.seen
	}
	n.successes += from.successes
	n.looked += from.looked
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

// naiveRows count as Rows do, and are easy to believe.
type naiveRows struct {
	rows   map[string]*naiveRow
	most   int
	stay   stay
	open   map[StreamID]naiveOpen
	turned int // away, since the last sample
}

// paths are those of the rows but other.
func (n *naiveRows) paths() (all []string) {
	for path := range n.rows {
		if path != otherRow {
			all = append(all, path)
		}
	}
	return all
}

type naiveOpen struct {
	row    string
	status int
}

func (n *naiveRows) row(path string) string {
	if n.rows[path] == nil && len(n.paths()) >= n.most {
		path = otherRow
		n.turned++
	}
	if n.rows[path] == nil {
		n.rows[path] = &naiveRow{}
	}
	return path
}

func (n *naiveRows) forget(id StreamID) {
	if o, ok := n.open[id]; ok {
		n.rows[o.row].open--
		if o.row == otherRow {
			n.turned--
		}
		delete(n.open, id)
	}
}

// sample lets rows go: all that had nothing for long, and of those that had
// nothing for a while the first, if others were turned away.
func (n *naiveRows) sample(age time.Duration) {
	var idle []string
	for path, r := range n.rows {
		if r.used == 0 || r.open > 0 || len(r.times) > r.looked {
			r.used = max(age, 1)
		}
		if len(r.times) > r.looked {
			r.seen = age
		}
		r.looked = len(r.times)
		if path != otherRow {
			idle = append(idle, path)
		}
	}
	slices.SortFunc(idle, func(a, b string) int {
		one, other := n.rows[a], n.rows[b]
		return cmp.Or(cmp.Compare(one.used, other.used), cmp.Compare(len(one.times), len(other.times)), cmp.Compare(a, b))
	})
	for i, path := range idle {
		r := n.rows[path]
		unused := age - r.used
		if unused < n.stay.long && (i >= n.turned || unused < n.stay.short) {
			break
		}
		delete(n.rows, path)
		if n.rows[otherRow] == nil {
			n.rows[otherRow] = &naiveRow{}
		}
		n.rows[otherRow].absorb(r)
	}
	n.turned = 0
}

func (n *naiveRows) add(e Event, age time.Duration) {
	o, ok := n.open[e.ID]
	switch {
	case e.RequestInit != nil:
		n.forget(e.ID)
		o.row = n.row(e.RequestInit.Path)
		n.open[e.ID] = naiveOpen{row: o.row}
		n.rows[o.row].open++
	case !ok:
	case e.ResponseInit != nil:
		n.open[e.ID] = naiveOpen{o.row, e.ResponseInit.Status}
	case e.ResponseEnd != nil:
		r := n.rows[o.row]
		r.open--
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
	if o := n.rows[otherRow]; o != nil && o.open == 0 && len(o.times) == 0 {
		delete(n.rows, otherRow) // all that was there was forgotten
	}
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
		// What ends within a sample counts as spread over it: a second of ten.
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

// Rows are what a naive count of the same events is.
func TestRowsAreWhatANaiveCountIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(genStep, 0, 100).Draw(t, "steps")
		waits := rapid.SliceOfN(rapid.IntRange(0, 5), len(steps), len(steps)).Draw(t, "waits")
		rows := NewRows(nil)
		rows.rows.free.Store(4) // rows
		rows.rows.stay = stay{long: 8 * time.Second, short: 3 * time.Second}
		model := naiveRows{rows: map[string]*naiveRow{}, most: 4, stay: rows.rows.stay, open: map[StreamID]naiveOpen{}}
		start := rows.rows.start
		now := start
		for i, e := range steps {
			rows.Add("", e)
			model.add(e, now.Sub(start))
			for range waits[i] {
				now = now.Add(500 * time.Millisecond)
				rows.sample(now)
				model.sample(now.Sub(start))
			}
		}
		now = now.Add(time.Second)
		model.sample(now.Sub(start))
		model.equal(t, rows.rows.answer(now, 0), now.Sub(start))
		for id := range model.open {
			rows.Forget("", id)
			model.forget(id)
		}
		model.sample(now.Sub(start))
		model.equal(t, rows.rows.answer(now, 0), now.Sub(start))
		require.Empty(t, rows.open)
		require.EqualValues(t, model.most-len(model.paths()), rows.rows.free.Load(), "no room is lost")

		now = now.Add(rows.rows.stay.long)
		last := rows.rows.answer(now, 0).GetRows()
		require.LessOrEqual(t, len(last), 1, "all are gone")
		require.EqualValues(t, model.most, rows.rows.free.Load())
		require.EqualValues(t, maxTableText, rows.rows.room.Load())
	})
}

func TestRowsWaitForSoManyEnds(t *testing.T) {
	rows := NewRows(nil)
	for i := range uint64(maxOpen + 10) {
		rows.Add("web", Event{ID: StreamID{Stream: i}, RequestInit: &RequestInit{}})
	}
	require.Len(t, rows.open, maxOpen)
	require.EqualValues(t, maxOpen, rows.Top().GetRows()[0].GetOpen())
}

// The same number in another process is another request, and a process lends
// its name to what has none.
func TestRowsOfSeveralProcesses(t *testing.T) {
	rows := NewRows(nil)
	for _, from := range []string{"a", "b", ""} {
		rows.Add(from, Event{Direction: Outbound, RequestInit: &RequestInit{}})
		rows.Add(from, Event{Direction: Inbound, ID: StreamID{Stream: 1}, RequestInit: &RequestInit{}, Source: clientAddr})
	}
	rows.Add("b", Event{ResponseEnd: &ResponseEnd{SinceRequestInit: 1}})
	var got []string
	for _, r := range rows.Top().GetRows() {
		got = append(got, fmt.Sprintf("%s>%s %d/%d", r.GetSource(), r.GetDestination(), r.GetCount(), r.GetOpen()))
	}
	require.Equal(t, []string{"b> 1/0", "> 0/1", "10.0.0.1> 0/1", "10.0.0.1>a 0/1", "10.0.0.1>b 0/1", "a> 0/1"}, got)
}
