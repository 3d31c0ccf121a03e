package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
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
					rows.begin(&namelessEvent, &RequestInit{Path: fmt.Sprint(i)}, time.Now())
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
