package tap

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

var namelessEvent = Event{Direction: Outbound, Source: clientAddr, Destination: serverAddr}

// one is the only row of t.
func one(tb testing.TB, t *table) *tappb.Row {
	tb.Helper()
	m := t.answer(0)
	require.Len(tb, m.GetRows(), 1)
	return m.GetRows()[0]
}

// The names of a row.
func TestRowNames(t *testing.T) {
	pods := Event{
		Direction: Inbound, Source: clientAddr, Destination: serverAddr,
		SourceLabels: map[string]string{"pod": "curl-1"}, DestinationLabels: podLabels,
		RouteLabels: map[string]string{"route": "vote"},
	}
	init := &RequestInit{Method: "GET", Scheme: "http", Authority: "web:80", Path: "/api"}
	for name, tt := range map[string]struct {
		about   Event
		byRoute bool
		want    *tappb.Row
	}{
		"pods": {pods, false, &tappb.Row{
			Source: "curl-1", Destination: "web-1", Method: "GET", Path: "/api", Route: "vote", Authority: "web:80",
			Direction: pb.TapEvent_INBOUND,
		}},
		"addresses": {namelessEvent, false, &tappb.Row{
			Source: "10.0.0.1", Destination: "10.1.2.3:8080", Method: "GET", Path: "/api", Authority: "web:80", Direction: pb.TapEvent_OUTBOUND,
		}},
		"nothing known": {Event{}, false, &tappb.Row{Method: "GET", Path: "/api", Authority: "web:80"}},
		"by route": {pods, true, &tappb.Row{
			Source: "curl-1", Destination: "web-1", Route: "vote", Authority: "web:80", Direction: pb.TapEvent_INBOUND,
		}},
		"by no route": {namelessEvent, true, &tappb.Row{
			Source: "10.0.0.1", Destination: "10.1.2.3:8080", Route: "[DEFAULT]", Authority: "web:80", Direction: pb.TapEvent_OUTBOUND,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rows := newTable(&tappb.TopRequest{ByRoute: tt.byRoute})
			rows.begin(&tt.about, init, "", time.Now())
			tt.want.Open = 1
			require.Equal(t, tt.want.String(), one(t, rows).String())
		})
	}
}

// Which requests are the same row, and which are not.
func TestRowKey(t *testing.T) {
	base := namelessEvent
	for name, tt := range map[string]struct {
		change  func(e *Event, r *RequestInit)
		same    bool
		byRoute bool // whether it is the same by route
	}{
		"port":        {func(e *Event, _ *RequestInit) { e.Source = netip.AddrPortFrom(e.Source.Addr(), 1) }, true, true},
		"server port": {func(e *Event, _ *RequestInit) { e.Destination = netip.AddrPortFrom(e.Destination.Addr(), 1) }, false, false},
		"authority":   {func(_ *Event, r *RequestInit) { r.Authority = "other" }, true, true},
		"scheme":      {func(_ *Event, r *RequestInit) { r.Scheme = "https" }, true, true},
		"route":       {func(e *Event, _ *RequestInit) { e.RouteLabels = map[string]string{"route": "r"} }, true, false},
		"method":      {func(_ *Event, r *RequestInit) { r.Method = "PUT" }, false, true},
		"path":        {func(_ *Event, r *RequestInit) { r.Path = "/other" }, false, true},
		"source":      {func(e *Event, _ *RequestInit) { e.Source = mustAddr("10.0.0.2:1") }, false, false},
		"destination": {func(e *Event, _ *RequestInit) { e.DestinationLabels = podLabels }, false, false},
		"direction":   {func(e *Event, _ *RequestInit) { e.Direction = Inbound }, false, false},
		"back":        {func(e *Event, _ *RequestInit) { e.Source, e.Destination = e.Destination, e.Source }, false, false},
		"long path":   {func(_ *Event, r *RequestInit) { r.Path += "!" }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, byRoute := range []bool{false, true} {
				rows := newTable(&tappb.TopRequest{ByRoute: byRoute})
				path := strings.Repeat("/a", maxRowText/2)
				about, init := base, RequestInit{Method: "GET", Path: path}
				rows.begin(&about, &init, "", time.Now())
				tt.change(&about, &init)
				rows.begin(&about, &init, "", time.Now())
				want := 2
				if byRoute && tt.byRoute || !byRoute && tt.same {
					want = 1
				}
				require.Len(t, rows.answer(0).GetRows(), want, "by route: %v", byRoute)
			}
		})
	}
}

// Successes.
func TestRowSuccess(t *testing.T) {
	for name, tt := range map[string]struct {
		end    ResponseEnd
		status int
		want   bool
	}{
		"200":                  {ResponseEnd{}, 200, true},
		"499":                  {ResponseEnd{}, 499, true},
		"500":                  {ResponseEnd{}, 500, false},
		"no response":          {ResponseEnd{}, 0, false},
		"reset":                {ResponseEnd{ResetCode: new(uint32(8))}, 200, false},
		"reset without error":  {ResponseEnd{ResetCode: new(uint32(0))}, 200, false},
		"grpc ok":              {ResponseEnd{GRPCStatus: new(codes.OK)}, 200, true},
		"grpc ok of a 503":     {ResponseEnd{GRPCStatus: new(codes.OK)}, 503, false},
		"grpc not found":       {ResponseEnd{GRPCStatus: new(codes.NotFound)}, 200, true},
		"grpc unimplemented":   {ResponseEnd{GRPCStatus: new(codes.Unimplemented)}, 200, true},
		"grpc exhausted":       {ResponseEnd{GRPCStatus: new(codes.ResourceExhausted)}, 200, true},
		"grpc unknown":         {ResponseEnd{GRPCStatus: new(codes.Unknown)}, 200, false},
		"grpc deadline":        {ResponseEnd{GRPCStatus: new(codes.DeadlineExceeded)}, 200, false},
		"grpc internal":        {ResponseEnd{GRPCStatus: new(codes.Internal)}, 200, false},
		"grpc unavailable":     {ResponseEnd{GRPCStatus: new(codes.Unavailable)}, 200, false},
		"grpc data loss":       {ResponseEnd{GRPCStatus: new(codes.DataLoss)}, 200, false},
		"grpc without meaning": {ResponseEnd{GRPCStatus: new(codes.Code(99))}, 200, true},
	} {
		t.Run(name, func(t *testing.T) {
			rows := newTable(nil)
			rows.begin(&namelessEvent, &RequestInit{}, "", time.Now()).end(&tt.end, tt.status, time.Now())
			r := one(t, rows)
			require.EqualValues(t, 1, r.GetCount())
			require.Equal(t, tt.want, r.GetSuccesses() == 1)
		})
	}
}

func TestRowTimes(t *testing.T) {
	rows := newTable(nil)
	for _, ms := range []int{30, 10, 20} {
		rows.begin(&namelessEvent, &RequestInit{}, "", time.Now()).end(&ResponseEnd{SinceRequestInit: time.Duration(ms) * time.Millisecond}, 200, time.Now())
	}
	rows.begin(&namelessEvent, &RequestInit{}, "", time.Now())
	r := one(t, rows)
	require.EqualValues(t, 3, r.GetCount())
	require.EqualValues(t, 1, r.GetOpen())
	require.Equal(t, 10*time.Millisecond, r.GetBest().AsDuration())
	require.Equal(t, 30*time.Millisecond, r.GetWorst().AsDuration())
	require.Equal(t, 20*time.Millisecond, r.GetLast().AsDuration())
	require.InEpsilon(t, 20*time.Millisecond, r.GetP50().AsDuration(), 0.05)
	require.InEpsilon(t, 30*time.Millisecond, r.GetP99().AsDuration(), 0.05)
}

func TestRowTimesWithoutEnd(t *testing.T) {
	rows := newTable(nil)
	rows.begin(&namelessEvent, &RequestInit{}, "", time.Now())
	r := one(t, rows)
	require.Zero(t, r.GetCount())
	for _, d := range []*durationpb.Duration{r.GetP50(), r.GetP95(), r.GetP99(), r.GetBest(), r.GetWorst(), r.GetLast()} {
		require.Nil(t, d)
	}
}

// Rows are bounded in number and size.
func TestRowsBounded(t *testing.T) {
	t.Run("number", func(t *testing.T) {
		rows := newTable(nil)
		fill(rows, maxRows+500)
		m := rows.answer(2 * maxRows)
		require.Len(t, m.GetRows(), maxRows+1)
		require.Zero(t, m.GetOmitted())
		i := slices.IndexFunc(m.GetRows(), func(r *tappb.Row) bool { return r.GetPath() == "(other)" })
		require.GreaterOrEqual(t, i, 0)
		other := m.GetRows()[i]
		require.Empty(t, other.GetMethod()+other.GetSource()+other.GetDestination())
		var want uint64
		for i := maxRows; i < maxRows+500; i++ {
			want += uint64(i%7) + 1
		}
		require.Equal(t, want, other.GetCount())
		fill(rows, 1) // a row that is there takes more
		require.Equal(t, want, rows.others[Inbound].ended)
	})
	t.Run("directions", func(t *testing.T) {
		rows := newTable(nil)
		fill(rows, maxRows)
		for _, d := range []Direction{Inbound, Outbound, Outbound} {
			rows.begin(&Event{Direction: d}, &RequestInit{Path: "/more"}, "", time.Now()).end(new(ResponseEnd), 200, time.Now())
		}
		got := make(map[Direction]uint64)
		for _, r := range rows.answer(2 * maxRows).GetRows() {
			if r.GetPath() == "(other)" {
				got[Direction(r.GetDirection())] = r.GetCount()
			}
		}
		require.Equal(t, map[Direction]uint64{Inbound: 1, Outbound: 2}, got)
	})
	t.Run("memory", func(t *testing.T) {
		require.LessOrEqual(t, reflect.TypeFor[row]().Size(), uintptr(1152))
	})
}

// The rows with the most requests first, in a stable order.
func TestRowOrder(t *testing.T) {
	rows := newTable(nil)
	for path, n := range map[string]int{"/c": 1, "/b": 1, "/a": 1, "/most": 3, "/none": 0} {
		rows.begin(&namelessEvent, &RequestInit{Path: path}, "", time.Now())
		for range n {
			rows.begin(&namelessEvent, &RequestInit{Path: path}, "", time.Now()).end(&ResponseEnd{}, 200, time.Now())
		}
	}
	paths := func(m *tappb.TopResponse) (all []string) {
		for _, r := range m.GetRows() {
			all = append(all, r.GetPath())
		}
		return all
	}
	require.Equal(t, []string{"/most", "/a", "/b", "/c", "/none"}, paths(rows.answer(0)))
	m := rows.answer(2)
	require.Equal(t, []string{"/most", "/a"}, paths(m))
	require.EqualValues(t, 3, m.GetOmitted())
}

func TestRowInvalidUTF8(t *testing.T) {
	rows := newTable(nil)
	bad := "a\xff"
	rows.begin(&Event{SourceLabels: map[string]string{"pod": bad}, RouteLabels: map[string]string{"route": bad}},
		&RequestInit{Method: bad, Path: bad, Authority: bad}, "", time.Now())
	r := one(t, rows)
	require.Equal(t, strings.Repeat("a\uFFFD", 5), r.GetSource()+r.GetMethod()+r.GetPath()+r.GetAuthority()+r.GetRoute())
}

// A row stays for its TTL after its last request. A row with a running request
// stays.
func TestRowsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		c := countAll(t, reg, nil)
		svc := stand(reg, respond("x"))
		send(t, svc, get("/once"))
		send(t, svc, get("/again"))
		long, err := svc.Call(t.Context(), get("/long"))
		require.NoError(t, err)
		time.Sleep(5 * time.Minute)
		send(t, svc, get("/again"))
		time.Sleep(5*time.Minute - time.Second)
		require.Len(t, c.rows.answer(0).GetRows(), 3)
		time.Sleep(time.Second)
		rows := byPath(c.rows.answer(0))
		require.Len(t, rows, 2)
		require.EqualValues(t, 2, rows["/again"].GetCount())
		require.EqualValues(t, 1, rows["/long"].GetOpen())

		send(t, svc, get("/once"))
		require.EqualValues(t, 1, byPath(c.rows.answer(0))["/once"].GetCount(), "a new row")
		time.Sleep(time.Hour)
		require.Len(t, c.rows.answer(0).GetRows(), 1)
		require.NoError(t, long.Body.Close())
		require.EqualValues(t, 1, byPath(c.rows.answer(0))["/long"].GetCount())
		time.Sleep(time.Hour)
		require.Empty(t, c.rows.answer(0).GetRows())
	})
}

// A full table removes rows without a request for a minute. Until then, further
// requests count in the row other.
func TestRowsFullTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(nil)
		fill(rows, maxRows)
		request := func() {
			rows.begin(&namelessEvent, &RequestInit{Path: "/new"}, "", time.Now()).end(&ResponseEnd{}, 200, time.Now())
		}
		time.Sleep(time.Minute - time.Second)
		rows.begin(&namelessEvent, &RequestInit{Path: "/new"}, "", time.Now()).end(&ResponseEnd{}, 200, time.Now())
		got := byPath(rows.answer(2 * maxRows))
		require.Len(t, got, maxRows+1)
		require.EqualValues(t, 1, got[otherRow].GetCount())
		time.Sleep(time.Second)
		rows.answer(maxRows + 1)
		request()
		got = byPath(rows.answer(0))
		require.Len(t, got, 2)
		require.EqualValues(t, 1, got["/new"].GetCount())
		require.EqualValues(t, 1, got[otherRow].GetCount())
	})
}

// Each request counts once while rows are added and removed.
func TestRowsUnderLoad(t *testing.T) {
	const clients, requests = 4, 3000
	rows := newTable(nil)
	rows.ttl = 1
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for i := range requests {
				r := rows.begin(&namelessEvent, &RequestInit{Path: fmt.Sprint(i % 10)}, "", time.Now())
				defer r.end(&ResponseEnd{SinceRequestInit: time.Millisecond}, 200, time.Now())
			}
		})
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
			for _, r := range rows.answer(0).GetRows() {
				require.LessOrEqual(t, r.GetCount()+r.GetOpen(), uint64(clients*requests))
			}
		}
	}
	time.Sleep(time.Millisecond) // the TTL
	require.Empty(t, rows.answer(0).GetRows())
}
