package top_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is the events of one request, as far as they came.
type request struct {
	path   string
	status int // 0: no response headers
	took   time.Duration
	grpc   *codes.Code
	reset  *uint32
}

func add(t *top.Table, from string, stream uint64, r request) {
	at := tap.Event{
		ID: tap.StreamID{Stream: stream}, Source: netip.MustParseAddrPort("10.0.0.9:4444"),
		DestinationLabels: map[string]string{"pod": "web-0"},
	}
	e := at
	e.RequestInit = &tap.RequestInit{Method: "GET", Path: r.path}
	t.Add(from, e)
	if r.status != 0 {
		e = at
		e.ResponseInit = &tap.ResponseInit{Status: r.status}
		t.Add(from, e)
	}
	e = at
	e.ResponseEnd = &tap.ResponseEnd{SinceRequestInit: r.took, GRPCStatus: r.grpc, ResetCode: r.reset}
	t.Add(from, e)
}

func TestTableAddsUp(t *testing.T) {
	var table top.Table
	for i, r := range []request{
		{path: "/a", status: 200, took: 2 * time.Millisecond},
		{path: "/a", status: 500, took: 7 * time.Millisecond},
		{path: "/a", status: 404, took: 3 * time.Millisecond},
		{path: "/b", status: 200, took: time.Second, grpc: new(codes.Unknown)},
		{path: "/b", status: 200, took: 2 * time.Second, grpc: new(codes.NotFound)},
		{path: "/c", took: time.Millisecond, reset: new(uint32(8))},
		{path: "/d", took: time.Millisecond, reset: new(uint32(7))},
	} {
		add(&table, "proxy", uint64(i), r)
	}
	rows := table.Rows()
	require.Len(t, rows, 3, "what was refused is no row")
	require.Equal(t, top.Row{
		Source: "10.0.0.9", Destination: "web-0", Method: "GET", Path: "/a", Count: 3, Successes: 2,
		Best: 2 * time.Millisecond, Worst: 7 * time.Millisecond, Last: 3 * time.Millisecond,
	}, rows[0])
	require.InDelta(t, 0.5, rows[1].SuccessRate(), 0)
	require.Zero(t, rows[2].SuccessRate())
}

func TestTableKeepsProcessesApart(t *testing.T) {
	var table top.Table
	init := tap.Event{RequestInit: &tap.RequestInit{Method: "GET", Path: "/"}}
	end := tap.Event{ResponseEnd: &tap.ResponseEnd{SinceRequestInit: time.Second}}
	table.Add("one", init)
	table.Add("two", end)
	require.Empty(t, table.Rows(), "the end of another process's stream 0")
	table.Add("one", end)
	require.Len(t, table.Rows(), 1)
}

func TestWrite(t *testing.T) {
	rows := []top.Row{
		{Source: "bot", Destination: "web-0", Method: "GET", Path: "/api/vote", Count: 20, Successes: 17,
			Best: 900 * time.Microsecond, Worst: 1600 * time.Millisecond, Last: 12 * time.Millisecond},
		{Source: "web", Destination: "a-very-long-name-of-a-replica", Method: "POST", Path: "/" + strings.Repeat("x", 38), Count: 1},
	}
	var b strings.Builder
	require.NoError(t, top.Write(&b, rows, 0, 0))
	require.Equal(t, ""+
		"Source                  Destination             Method     Path                                     Count   Best  Worst   Last Success Rate\n"+
		"bot                     web-0                   GET        /api/vote                                   20  900µs     2s   12ms       85.00%\n"+
		"web                     a-very-long-name-of-a-… POST       /"+strings.Repeat("x", 38)+"      1    0µs    0µs    0µs        0.00%\n",
		b.String())

	b.Reset()
	require.NoError(t, top.Write(&b, rows, 115, 2))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	for _, l := range lines {
		require.LessOrEqual(t, len([]rune(l)), 115)
	}
}

func TestWriteJSON(t *testing.T) {
	var b strings.Builder
	require.NoError(t, top.WriteJSON(&b, nil))
	require.JSONEq(t, `[]`, b.String())
	b.Reset()
	require.NoError(t, top.WriteJSON(&b, []top.Row{{
		Source: "bot", Destination: "web-0", Method: "GET", Path: "/", Count: 4, Successes: 3,
		Best: 1234567 * time.Nanosecond, Worst: time.Second, Last: time.Millisecond,
	}}))
	require.JSONEq(t, `[{"source":"bot","destination":"web-0","method":"GET","path":"/","count":4,
		"best_ms":1.235,"worst_ms":1000,"last_ms":1,"success_rate":0.75}]`, b.String())
}
