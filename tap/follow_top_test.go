package tap

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap/tappb"
)

// byPath is the rows with their paths.
func byPath(m *tappb.TopResponse) map[string]*tappb.Row {
	rows := map[string]*tappb.Row{}
	for _, r := range m.GetRows() {
		rows[r.GetPath()] = r
	}
	return rows
}

// The rows of several processes are one answer. Other processes yield errors: one with
// linkerd's tap only, and one that cannot be reached.
func TestFollowTop(t *testing.T) {
	t.Parallel()
	a, b := start(t, "", ours(new(Registry))), start(t, "", ours(new(Registry)))
	traffic(t, a.reg, "/a")
	traffic(t, b.reg, "/b")
	linkerd := start(t, "", linkerds(new(Registry)))
	processes := []Process{a.process(t, "a"), b.process(t, "b"), at(t, freeport.Addr(t), "c"), linkerd.process(t, "d")}
	away, withoutTop, seenBoth := 0, 0, false
	for m, err := range FollowTop(bounded(t), processes, often()) {
		switch {
		case errors.Is(err, errNoTop):
			require.ErrorContains(t, err, "d: ")
			withoutTop++
		case err != nil:
			require.ErrorContains(t, err, "c: tap: top: ")
			require.Nil(t, m)
			away++
		default:
			rows := byPath(m)
			seenBoth = rows["/a"].GetCount() > 0 && rows["/b"].GetCount() > 0
		}
		if seenBoth && away > 0 && withoutTop > 0 {
			return
		}
	}
	t.Fatalf("rows of both: %v, errors: %d and %d", seenBoth, away, withoutTop)
}

// The rows of a stopped process are removed. After a restart it has new ones.
func TestFollowTopRestart(t *testing.T) {
	t.Parallel()
	a := start(t, "", ours(new(Registry)))
	stop := traffic(t, a.reg, "/before")
	phase := 0
	for m, err := range FollowTop(bounded(t), []Process{a.process(t, "a")}, often()) {
		rows := byPath(m)
		switch {
		case phase == 0 && rows["/before"].GetCount() > 0:
			stop()
			a.stop()
			phase++
		case phase == 1 && err != nil:
			require.Equal(t, codes.Unavailable, status.Code(err))
			phase++
		case phase == 2 && err == nil:
			require.Empty(t, m.GetRows())
			traffic(t, start(t, a.addr, ours(new(Registry))).reg, "/after")
			phase++
		case phase == 3 && rows["/after"].GetCount() > 0:
			require.Nil(t, rows["/before"])
			return
		}
	}
	t.Fatalf("it ended in phase %d", phase)
}

func TestFollowTopRejects(t *testing.T) {
	t.Parallel()
	collect := func(p []Process, req *tappb.TopRequest) (errs []error) {
		for m, err := range FollowTop(bounded(t), p, req) {
			require.Nil(t, m)
			errs = append(errs, err)
		}
		return errs
	}
	a := start(t, "", ours(new(Registry)))
	processes := []Process{a.process(t, "a")}
	errs := collect(processes, &tappb.TopRequest{Every: durationpb.New(1)})
	require.Len(t, errs, 1)
	require.Equal(t, codes.InvalidArgument, status.Code(errs[0]))
	errs = collect(processes, &tappb.TopRequest{Headers: []*tappb.HeaderMatch{
		{Name: "cookie", Value: &tappb.HeaderMatch_Exact{Exact: "a"}},
	}})
	require.Len(t, errs, 1)
	require.ErrorContains(t, errs[0], "a: tap: top: rpc error: code = PermissionDenied")
}

func TestFollowTopCanceled(t *testing.T) {
	t.Parallel()
	p := start(t, "", ours(new(Registry)))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 150*time.Millisecond, errors.New("enough"))
	defer cancel()
	var last error
	for _, err := range FollowTop(ctx, []Process{p.process(t, "p")}, often()) {
		require.NoError(t, last)
		last = err
	}
	require.EqualError(t, last, "tap: top: enough")
	require.Eventually(t, func() bool { return p.reg.active.Load() == nil }, 20*time.Second, time.Millisecond)
}

func TestFollowTopNoProcesses(t *testing.T) {
	t.Parallel()
	for range FollowTop(t.Context(), nil, nil) {
		t.Fatal("there is nothing to see")
	}
}

// Equal rows are added up, and the received rows do not change.
func TestRowMerger(t *testing.T) {
	ms := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Millisecond) }
	a := &tappb.TopResponse{Span: ms(1000), Omitted: 2, Rows: []*tappb.Row{
		{
			Source: "x", Destination: "y", Method: "GET", Path: "/", Route: "r1", Authority: "first", Count: 10, Successes: 9, Rate: 1.5, Open: 1,
			P50: ms(10), P95: ms(20), P99: ms(30), Best: ms(5), Worst: ms(40), Last: ms(11),
		},
		{Path: "/", Method: "GET", Direction: pb.TapEvent_OUTBOUND, Destination: "y", Count: 1},
		{Path: "/", Method: "GET", Direction: pb.TapEvent_INBOUND, Source: "x", Count: 1},
		{Source: "x", Route: "vote", Count: 4},
		{Source: "x", Path: "/open", Open: 3},
	}}
	b := &tappb.TopResponse{Span: ms(3000), Omitted: 1, Rows: []*tappb.Row{
		{
			Source: "x", Destination: "y", Method: "GET", Path: "/", Route: "r2", Authority: "second", Count: 20, Successes: 20, Rate: 2, Open: 2,
			P50: ms(12), P95: ms(18), P99: ms(31), Best: ms(4), Worst: ms(39), Last: ms(12),
		},
		{Path: "/", Method: "GET", Direction: pb.TapEvent_OUTBOUND, Destination: "y", Count: 2},
		{Source: "x", Route: "other", Count: 3},
		{Source: "x", Path: "/open", Count: 2, P50: ms(1), P95: ms(1), P99: ms(1), Best: ms(1), Worst: ms(1), Last: ms(1)},
	}}
	before := a.String() + b.String()
	m := &rowMerger{rows: map[mergedKey]*tappb.Row{}}
	m.add("pa", a)
	m.add("pb", b)
	m.add("pc", nil)
	got := m.top(5)
	want := &tappb.TopResponse{Span: ms(3000), Omitted: 2 + 1 + 2, Rows: []*tappb.Row{
		{
			Source: "x", Destination: "y", Method: "GET", Path: "/", Route: "r1", Authority: "first", Count: 30, Successes: 29, Rate: 3.5, Open: 3,
			P50: ms(12), P95: ms(20), P99: ms(31), Best: ms(4), Worst: ms(40), Last: ms(12),
		},
		{Source: "x", Route: "vote", Count: 4},
		{Source: "x", Route: "other", Count: 3},
		{Source: "pb", Path: "/", Method: "GET", Direction: pb.TapEvent_OUTBOUND, Destination: "y", Count: 2},
		{Source: "x", Path: "/open", Count: 2, Open: 3, P50: ms(1), P95: ms(1), P99: ms(1), Best: ms(1), Worst: ms(1), Last: ms(1)},
	}}
	require.Equal(t, want.String(), got.String())
	require.Equal(t, before, a.String()+b.String())
}

// MergeTop adds up rows with the same names.
func TestMergeTop(t *testing.T) {
	row := func(source string, count uint64) *tappb.TopResponse {
		return &tappb.TopResponse{Rows: []*tappb.Row{{Source: source, Destination: "db", Path: "/", Count: count, Direction: pb.TapEvent_OUTBOUND}}}
	}
	all := map[string]*tappb.TopResponse{"a": row("web", 2), "b": row("web", 3), "c": row("", 4)}
	got := MergeTop(all, &tappb.TopRequest{Rows: 1})
	require.Len(t, got.GetRows(), 1)
	require.EqualValues(t, 5, got.GetRows()[0].GetCount())
	require.EqualValues(t, 1, got.GetOmitted())
	got = MergeTop(all, nil)
	require.Len(t, got.GetRows(), 2)
	require.Equal(t, "c", got.GetRows()[1].GetSource(), "the name of the process")
	require.EqualValues(t, 2, all["a"].GetRows()[0].GetCount())
}
