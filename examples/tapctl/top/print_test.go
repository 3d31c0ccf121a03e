package top

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

func TestWrite(t *testing.T) {
	rows := []*tappb.Row{
		{
			Source: "bot", Destination: "web-0", Method: "GET", Path: "/api/vote", Count: 20, Successes: 17,
			Best: durationpb.New(900 * time.Microsecond), Worst: durationpb.New(1600 * time.Millisecond), Last: durationpb.New(12 * time.Millisecond),
		},
		{Source: "web", Destination: "a-very-long-name-of-a-replica", Method: "POST", Path: "/" + strings.Repeat("x", 38) + "\x1b", Count: 1},
		{Source: "web", Destination: "web-0", Method: "GET", Path: "/hangs", Open: 1},
	}
	var b strings.Builder
	require.NoError(t, Write(&b, rows, Columns{}))
	require.Equal(t, ""+
		"Source                  Destination                   Method     Path                                         Count   Best  Worst   Last Success Rate\n"+
		"bot                     web-0                         GET        /api/vote                                       20  900µs     2s   12ms       85.00%\n"+
		"web                     a-very-long-name-of-a-replica POST       /xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\\x1b      1    0µs    0µs    0µs        0.00%\n"+
		"web                     web-0                         GET        /hangs                                           0      -      -      -            -\n",
		b.String())

	b.Reset()
	require.NoError(t, Write(&b, someRows().answer.GetRows()[:1], Columns{Wide: true, HideSources: true}))
	require.Equal(t, ""+
		"Destination             Method     Path                                   Count  Open   RPS   Best    P50    P95    P99  Worst   Last Success Rate\n"+
		"web-0                   GET        /api/vote                                412     1    41    5ms   10ms   15ms   20ms   25ms   10ms       85.19%\n",
		b.String())
}

// A table for a screen is as wide as the screen, and leaves room for the prompt.
func TestWriteScreen(t *testing.T) {
	var rows []*tappb.Row
	for range 9 {
		rows = append(rows, &tappb.Row{Source: "web-0", Destination: "voting-0", Method: "POST", Path: "/" + strings.Repeat("x", 60), Count: 1, Successes: 1})
	}
	var b strings.Builder
	require.NoError(t, write(&b, rows, Columns{}, 80, 6))
	require.Equal(t, ""+
		"Source Destination Method Path              Count  Best Worst  Last Success Rate\n"+
		strings.Repeat("web-0  voting-0    POST   /xx…xxxxxxxxxxxx      1   0µs   0µs   0µs      100.00%\n", 3)+
		"6 more rows\n", b.String())
}

// Rows that differ by their source alone are added up, with quantiles that are
// no better than the true ones.
func TestWithoutSources(t *testing.T) {
	a, b := aRow("a", "web-0", "GET", "/", 3, 2, 4), aRow("b", "web-0", "GET", "/", 5, 5, 2)
	open := aRow("c", "web-0", "GET", "/", 0, 0, 0)
	sums := withoutSources([]*tappb.Row{a, open, b, aRow("a", "web-1", "GET", "/", 1, 1, 1)})
	require.Len(t, sums, 2)
	sum := sums[0]
	require.EqualValues(t, 8, sum.GetCount())
	require.EqualValues(t, 7, sum.GetSuccesses())
	require.Equal(t, a.GetOpen()+b.GetOpen(), sum.GetOpen())
	require.InDelta(t, a.GetRate()+b.GetRate(), sum.GetRate(), 1e-9)
	require.Equal(t, b.GetBest().AsDuration(), sum.GetBest().AsDuration())
	require.Equal(t, a.GetP99().AsDuration(), sum.GetP99().AsDuration())
	require.Equal(t, a.GetWorst().AsDuration(), sum.GetWorst().AsDuration())
	require.Equal(t, "a", a.GetSource(), "what was given stays as it is")
}

func TestWriteJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, WriteJSON(&b, nil, Columns{}))
	require.JSONEq(t, `[]`, b.String())
	rows := []*tappb.Row{
		{
			Source: "bot", Destination: "web-0", Method: "GET", Path: "/", Count: 4, Successes: 3, Direction: 1, Rate: 1.5, Open: 2,
			Best: durationpb.New(1234567 * time.Nanosecond), Worst: durationpb.New(time.Second), Last: durationpb.New(time.Millisecond),
			P50: durationpb.New(2 * time.Millisecond), Authority: "web", Route: "vote",
		},
		{Source: "bot", Destination: "web-0", Method: "GET", Path: "/hangs", Open: 1},
	}
	b.Reset()
	require.NoError(t, WriteJSON(&b, rows, Columns{}))
	require.JSONEq(t, `[{"source":"bot","destination":"web-0","method":"GET","path":"/","count":4,
		"best_ms":1.235,"worst_ms":1000,"last_ms":1,"success_rate":0.75}]`, b.String())
	b.Reset()
	require.NoError(t, WriteJSON(&b, rows, Columns{Wide: true, HideSources: true}))
	require.JSONEq(t, `[{"source":"","destination":"web-0","method":"GET","path":"/","count":4,
		"best_ms":1.235,"worst_ms":1000,"last_ms":1,"success_rate":0.75, "route":"vote","authority":"web","direction":"in",
		"open":2,"rps":1.5,"p50_ms":2,"p95_ms":0,"p99_ms":0}]`, b.String())
}
