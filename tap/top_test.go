package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// only is the row of a process in which one thing is counted.
func only(t testing.TB, c *counter) *tappb.Row {
	t.Helper()
	return one(t, c.rows)
}

// A request counts from before it is forwarded until the end of its body, with
// and without watchers.
func TestTopCounts(t *testing.T) {
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprint("watched ", watched), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := new(Registry)
				if watched {
					watchAll(t, reg)
				}
				c := countAll(t, reg, nil)
				svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
					r := only(t, c)
					assert.EqualValues(t, 1, r.GetOpen())
					assert.Zero(t, r.GetCount())
					time.Sleep(30 * time.Millisecond)
					return &reply{status: 200, Body: io.NopCloser(strings.NewReader("hello"))}, nil
				}))
				ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "vote"}})
				rsp, err := svc.Call(ctx, get("/api"))
				require.NoError(t, err)
				require.Zero(t, only(t, c).GetCount(), "the body is not over")
				time.Sleep(12 * time.Millisecond)
				_, err = io.ReadAll(rsp.Body)
				require.NoError(t, err)

				r := only(t, c)
				require.Equal(t, "10.0.0.1 web-1 GET /api vote web:80", strings.Join([]string{
					r.GetSource(), r.GetDestination(), r.GetMethod(), r.GetPath(), r.GetRoute(), r.GetAuthority(),
				}, " "))
				require.EqualValues(t, 1, r.GetCount())
				require.EqualValues(t, 1, r.GetSuccesses())
				require.Zero(t, r.GetOpen())
				require.Equal(t, 42*time.Millisecond, r.GetLast().AsDuration())
				require.Equal(t, 42*time.Millisecond, r.GetP99().AsDuration())
			})
		})
	}
}

// Each way in which a request ends without a success.
func TestTopCountsFailures(t *testing.T) {
	body := func() io.ReadCloser { return io.NopCloser(strings.NewReader("x")) }
	answer := func(r *reply) serve { return func(context.Context, *call) (*reply, error) { return r, nil } }
	for name, inner := range map[string]serve{
		"error":             func(context.Context, *call) (*reply, error) { return nil, errors.New("down") },
		"refusal":           func(context.Context, *call) (*reply, error) { return nil, layer.ErrNotReady },
		"panic":             func(context.Context, *call) (*reply, error) { panic("oh") },
		"500":               answer(&reply{status: 500, Body: body()}),
		"grpc in a trailer": answer(&reply{status: 200, Body: body(), trailer: fields{{"grpc-status", "13"}}}),
		"grpc in a header":  answer(&reply{status: 200, Body: body(), header: fields{{"grpc-status", "14"}}}),
		"reset":             answer(&reply{status: 200, Body: brokenBody{context.Canceled}}),
	} {
		t.Run(name, func(t *testing.T) {
			for _, watched := range []bool{false, true} {
				reg := new(Registry)
				if watched {
					watchAll(t, reg)
				}
				c := countAll(t, reg, nil)
				func() {
					defer func() { _ = recover() }()
					if rsp, err := stand(reg, inner).Call(t.Context(), get("/")); err == nil {
						_, _ = io.ReadAll(rsp.Body)
					}
				}()
				r := only(t, c)
				require.EqualValues(t, 1, r.GetCount(), "watched: %v", watched)
				require.Zero(t, r.GetSuccesses(), "watched: %v", watched)
				require.Zero(t, r.GetOpen())
			}
		})
	}
}

// A status in the trailers takes precedence over one in the headers.
func TestTopCountsTrailerStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		header, trailer fields
		successes       uint64
	}{
		"trailer ok":      {fields{{"grpc-status", "13"}}, fields{{"grpc-status", "0"}}, 1},
		"trailer failure": {fields{{"grpc-status", "0"}}, fields{{"grpc-status", "13"}}, 0},
		"other trailer":   {fields{{"grpc-status", "13"}}, fields{{"checksum", "1"}}, 0},
		"no number":       {nil, fields{{"grpc-status", "internal"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			c := countAll(t, reg, nil)
			send(t, stand(reg, serve(func(context.Context, *call) (*reply, error) {
				return &reply{status: 200, Body: io.NopCloser(strings.NewReader("")), header: tt.header, trailer: tt.trailer}, nil
			})), get("/"))
			require.Equal(t, tt.successes, only(t, c).GetSuccesses())
		})
	}
}

func TestTopCountsMatching(t *testing.T) {
	reg := new(Registry)
	c := countAll(t, reg, &tappb.TopRequest{
		Match:   match.PathPrefix("/api/"),
		Headers: []*tappb.HeaderMatch{{Name: "tenant", Value: &tappb.HeaderMatch_Exact{Exact: "a"}}},
	})
	svc := stand(reg, respond("x"))
	for _, path := range []string{"/api/1", "/api/1", "/other"} {
		for _, tenant := range []string{"a", "b"} {
			req := get(path)
			req.header = fields{{"Tenant", tenant}}
			send(t, svc, req)
		}
	}
	require.EqualValues(t, 2, only(t, c).GetCount())
}

// The rate of a steady flow is right from the first second; it fades with ten
// seconds when the flow ends.
func TestTopRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		svc := stand(reg, respond("x"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var rates []float64
		var spans []time.Duration
		go func() {
			for range 200 { // 20 s
				time.Sleep(100 * time.Millisecond)
				quiet(svc)
			}
		}()
		time.Sleep(time.Millisecond) // what ends when a sample is taken may count or not
		for m, err := range reg.Top(ctx, nil) {
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
				break
			}
			rates = append(rates, m.GetRows()[0].GetRate())
			spans = append(spans, m.GetSpan().AsDuration())
			if len(rates) == 40 {
				cancel()
			}
		}
		require.Len(t, rates, 40)
		for i, rate := range rates[:20] {
			require.InEpsilon(t, 10, rate, 0.02, "after %d s", i+1)
			require.Equal(t, time.Duration(i+1)*time.Second, spans[i])
		}
		// Of 20 s of flow, e^-1 − e^-3 are left after ten more, out of 1 − e^-3.
		require.InEpsilon(t, 10*0.3348, rates[29], 0.03)
		require.Less(t, rates[39], rates[38])
	})
}

// quiet sends a request from any goroutine.
func quiet(svc service) {
	if rsp, err := svc.Call(context.Background(), get("/")); err == nil {
		_, _ = io.Copy(io.Discard, rsp.Body)
	}
}

func TestTopInterval(t *testing.T) {
	for _, every := range []time.Duration{0, leastEvery, 1500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			reg := new(Registry)
			req := &tappb.TopRequest{Every: durationpb.New(every)}
			if every == 0 {
				req.Every, every = nil, time.Second
			}
			start, n := time.Now(), 0
			for m, err := range reg.Top(t.Context(), req) {
				require.NoError(t, err)
				require.Empty(t, m.GetRows())
				if n++; n == 3 {
					break
				}
			}
			require.Equal(t, 3*every, time.Since(start))
			require.Nil(t, reg.active.Load(), "nothing is left behind")
		})
	}
}

func TestTopRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		req  *tappb.TopRequest
		code codes.Code
		want string
	}{
		"too often": {&tappb.TopRequest{Every: durationpb.New(99 * time.Millisecond)}, codes.InvalidArgument, "tap: every: 99ms is less than 100ms"},
		"backward":  {&tappb.TopRequest{Every: durationpb.New(-1)}, codes.InvalidArgument, "tap: every: -1ns is less than 100ms"},
		"no time":   {&tappb.TopRequest{Every: &durationpb.Duration{Seconds: 1, Nanos: -1}}, codes.InvalidArgument, "tap: every: "},
		"match":     {&tappb.TopRequest{Match: match.Method("")}, codes.InvalidArgument, "tap: match.http.method: "},
		"secret": {&tappb.TopRequest{Headers: []*tappb.HeaderMatch{
			{Name: "cookie", Value: &tappb.HeaderMatch_Prefix{Prefix: "a"}},
		}}, codes.PermissionDenied, "tap: headers[0]: "},
	} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			n := 0
			for m, err := range reg.Top(t.Context(), tt.req) {
				n++
				require.Nil(t, m)
				require.ErrorContains(t, err, tt.want)
				require.Equal(t, tt.code, status.Code(err))
			}
			require.Equal(t, 1, n)
			require.Nil(t, reg.active.Load())
		})
	}
	t.Run("too many", func(t *testing.T) {
		reg := NewRegistry(WithCapacity(1, 0))
		watchAll(t, reg)
		for _, err := range reg.Top(t.Context(), nil) {
			require.EqualError(t, err, "tap: too many watchers: 1 of 1")
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		}
	})
}

// Requests and a reader run concurrently. No request is lost, and no value is out of range.
func TestTopUnderLoad(t *testing.T) {
	const clients, requests = 4, 500
	reg := new(Registry)
	c := countAll(t, reg, nil)
	svc := stand(reg, serve(func(_ context.Context, c *call) (*reply, error) {
		return &reply{status: 200 + 300*(len(c.path)%2), Body: io.NopCloser(strings.NewReader("x"))}, nil
	}))
	done := make(chan struct{})
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for i := range requests {
				send(t, svc, get(strings.Repeat("/", 1+i%10)))
			}
		})
	}
	go func() { running.Wait(); close(done) }()
	defer running.Wait()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		for _, r := range c.rows.answer(0).GetRows() {
			require.LessOrEqual(t, r.GetSuccesses(), r.GetCount())
			require.LessOrEqual(t, r.GetCount()+r.GetOpen(), uint64(clients*requests/10))
			require.LessOrEqual(t, r.GetBest().AsDuration(), r.GetWorst().AsDuration())
		}
	}
	rows := c.rows.answer(0).GetRows()
	require.Len(t, rows, 10)
	for _, r := range rows {
		require.EqualValues(t, clients*requests/10, r.GetCount())
		require.Zero(t, r.GetOpen())
		require.Equal(t, r.GetCount()*uint64((len(r.GetPath())+1)%2), r.GetSuccesses())
	}
}

// Concurrent first requests with the same key get one row.
func TestTopConcurrentFirstRequests(t *testing.T) {
	for range 50 {
		rows := newTable(nil)
		var running sync.WaitGroup
		begin := make(chan struct{})
		for range 8 {
			running.Go(func() {
				<-begin
				for i := range 20 {
					rows.begin(&namelessEvent, &RequestInit{Path: fmt.Sprint(i)}, "", time.Now())
				}
			})
		}
		close(begin)
		running.Wait()
		m := rows.answer(0)
		require.Len(t, m.GetRows(), 20)
		for _, r := range m.GetRows() {
			require.EqualValues(t, 8, r.GetOpen())
		}
	}
}

// The invariants of layers hold while requests are counted.
func TestTopConform(t *testing.T) {
	reg := new(Registry)
	countAll(t, reg, nil)
	countAll(t, reg, &tappb.TopRequest{ByRoute: true})
	layertest.Run(t, layertest.Layer{Layer: Layer(reg, testAccess{})})
}

// A counted request costs six allocations, and other requests none.
func TestTopAllocations(t *testing.T) {
	reg := new(Registry)
	countAll(t, reg, nil)
	svc, req := standPlain(reg, endpoint{&reply{status: 200}}), get("/api")
	n := testing.AllocsPerRun(100, func() { _, _ = svc.Call(t.Context(), req) })
	require.LessOrEqual(t, n, 6.0)

	reg = new(Registry)
	countAll(t, reg, &tappb.TopRequest{Match: match.PathPrefix("/other")})
	svc = standPlain(reg, endpoint{&reply{status: 200}})
	n = testing.AllocsPerRun(100, func() { _, _ = svc.Call(t.Context(), req) })
	require.Zero(t, n)
}

// By destination, requests with the same endpoint are one row. Its quantiles are those
// of all requests, because quantiles of rows could not be added up.
func TestTopByDestination(t *testing.T) {
	rows := newEventCounter(&tappb.TopRequest{ByDestination: true, ByRoute: true})
	for i := range 100 {
		e := Event{
			Direction: Outbound, ID: StreamID{Stream: uint64(i)},
			Source:            netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			DestinationLabels: map[string]string{"pod": "web-0"},
			RouteLabels:       map[string]string{"route": string(rune('a' + i%7))},
			RequestInit:       &RequestInit{Method: "GET", Path: "/" + string(rune('a'+i%26)), Authority: "web"},
		}
		rows.add(&e)
		rows.add(&Event{ID: e.ID, ResponseInit: &ResponseInit{Status: 200}})
		rows.add(&Event{ID: e.ID, ResponseEnd: &ResponseEnd{SinceRequestInit: time.Duration(i+1) * time.Millisecond}})
	}
	answer := rows.rows.answer(0)
	require.Len(t, answer.GetRows(), 1)
	row := answer.GetRows()[0]
	require.Equal(t, "web-0", row.GetDestination())
	require.Equal(t, pb.TapEvent_OUTBOUND, row.GetDirection())
	require.EqualValues(t, 100, row.GetCount())
	require.Empty(t, row.GetSource()+row.GetMethod()+row.GetPath()+row.GetRoute())
	require.InEpsilon(t, 50*time.Millisecond, row.GetP50().AsDuration(), 0.06)
	require.InEpsilon(t, 95*time.Millisecond, row.GetP95().AsDuration(), 0.06)
	require.InEpsilon(t, 99*time.Millisecond, row.GetP99().AsDuration(), 0.06)
}

// The name of a process is not part of a row, because otherwise each process would have its
// own row.
func TestFollowTopByDestination(t *testing.T) {
	t.Parallel()
	a, b := start(t, "", ours(new(Registry))), start(t, "", ours(new(Registry)))
	traffic(t, a.reg, "/a")
	traffic(t, b.reg, "/b")
	req := often()
	req.ByDestination = true
	for m, err := range FollowTop(bounded(t), []Process{a.process(t, "a"), b.process(t, "b")}, req) {
		require.NoError(t, err)
		require.LessOrEqual(t, len(m.GetRows()), 1, m)
		if len(m.GetRows()) == 1 && m.GetRows()[0].GetCount() > 20 {
			require.Empty(t, m.GetRows()[0].GetSource())
			return
		}
	}
}

// often is a TopRequest for tests with a real clock.
func often() *tappb.TopRequest { return &tappb.TopRequest{Every: durationpb.New(leastEvery)} }

func TestTopOverGRPC(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(new(Registry)))
	svc := stand(l.reg, respond("x"))
	conn := l.dial(t)
	stream, err := tappb.NewTapClient(conn).Top(t.Context(), often())
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	send(t, svc, get("/api")) // counted after the headers
	m := new(tappb.TopResponse)
	for len(m.GetRows()) == 0 {
		m, err = stream.Recv()
		require.NoError(t, err)
	}
	require.Len(t, m.GetRows(), 1)
	require.Equal(t, "/api", m.GetRows()[0].GetPath())

	n := 0
	for m, err := range Top(t.Context(), conn, often()) {
		require.NoError(t, err)
		if n++; n == 1 {
			require.Empty(t, m.GetRows())
			send(t, svc, get("/api"))
			continue
		}
		if len(m.GetRows()) == 0 {
			continue // it was on its way before the request
		}
		require.EqualValues(t, 1, m.GetRows()[0].GetCount())
		break
	}
}

func TestTopOverGRPCEnds(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(new(Registry)))
	gone := func() bool { return l.reg.active.Load() == nil }
	t.Run("when the client leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var last error
		for _, err := range Top(ctx, l.dial(t), often()) {
			last = err
			cancel()
		}
		require.ErrorIs(t, last, context.Canceled)
		require.Eventually(t, gone, 20*time.Second, time.Millisecond)
	})
	t.Run("when the server shuts down", func(t *testing.T) {
		var last error
		for _, err := range Top(t.Context(), l.dial(t), often()) {
			last = err
			l.srv.Shutdown()
		}
		require.Equal(t, codes.Unavailable, status.Code(last))
		require.Eventually(t, gone, 20*time.Second, time.Millisecond)
	})
}

func TestTopOverGRPCRejects(t *testing.T) {
	t.Parallel()
	l := start(t, "", ours(NewRegistry(WithCapacity(1, 0))))
	conn := l.dial(t)
	refusal := func(req *tappb.TopRequest) codes.Code {
		var code codes.Code
		for m, err := range Top(t.Context(), conn, req) {
			require.Nil(t, m)
			code = status.Code(err)
		}
		return code
	}
	require.Equal(t, codes.InvalidArgument, refusal(&tappb.TopRequest{Every: durationpb.New(1)}))
	require.Equal(t, codes.InvalidArgument, refusal(&tappb.TopRequest{Match: match.Method("")}))
	watchAll(t, l.reg)
	require.Equal(t, codes.ResourceExhausted, refusal(nil))
	err := gotowerTap{server: NewServer(nil)}.Top(nil, foreign{ctx: t.Context()})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

// The requests that a mux routes by one pattern are one row, and not a row for each ID. Those of a subtree are not,
// because another router may serve it.
func TestTopPattern(t *testing.T) {
	t.Parallel()
	reg := new(Registry)
	byPath, byRoute := countAll(t, reg, nil), countAll(t, reg, &tappb.TopRequest{ByRoute: true})
	byDestination := countAll(t, reg, &tappb.TopRequest{ByDestination: true})
	shown := func(c *counter) map[string]uint64 {
		counts := make(map[string]uint64)
		for _, r := range c.rows.answer(0).GetRows() {
			counts[strings.TrimSpace(r.GetMethod()+" "+r.GetPath()+" "+r.GetRoute())] += r.GetCount()
			require.LessOrEqual(t, r.GetOpen(), uint64(1))
		}
		return counts
	}
	during := make(chan map[string]uint64, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", func(_ http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "2" {
			during <- shown(byPath)
		}
	})
	mux.HandleFunc("/old/{id}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 10_000)) })
	mux.HandleFunc("/files/", func(http.ResponseWriter, *http.Request) {})
	s := httptest.NewServer(httplayer.Middleware(Layer(reg, httplayer.HTTP{}, Inbound))(mux))
	t.Cleanup(s.Close)
	for i, path := range []string{"/users/1", "/users/2", "/old/1", "/old/2", "/files/a", "/files/b", "/unknown", "/pkg.Service/Method"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, http.NoBody)
		require.NoError(t, err)
		if strings.HasPrefix(path, "/pkg") {
			req.Header.Set("Content-Type", "application/grpc")
		}
		rsp, err := s.Client().Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		for _, c := range []*counter{byPath, byRoute, byDestination} {
			require.Eventually(t, func() bool { // the end of the body is seen after the client has it
				var ended uint64
				for _, n := range shown(c) {
					ended += n
				}
				return ended == uint64(i+1)
			}, time.Minute, time.Millisecond)
		}
	}
	require.Equal(t, map[string]uint64{
		"GET /users/{id}": 2, "GET /old/{id}": 2, "GET /files/a": 1, "GET /files/b": 1, "GET /unknown": 1, "GET /pkg.Service/Method": 1,
	}, shown(byPath))
	require.Equal(t, map[string]uint64{
		"GET /users/{id}": 2, "/old/{id}": 2, "/files/": 2, "[DEFAULT]": 1, "/pkg.Service/Method": 1,
	}, shown(byRoute))
	require.Equal(t, map[string]uint64{"": 8}, shown(byDestination))
	require.Equal(t, map[string]uint64{"GET /users/{id}": 1, "GET /users/2": 0}, <-during, "an open request counts by its own path")
}
