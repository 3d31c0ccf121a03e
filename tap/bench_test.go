package tap

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

type noop struct{ service }

func (n noop) Call(ctx context.Context, c *call) (*reply, error) { return n.service.Call(ctx, c) }

// endpoint answers at once, and always the same.
type endpoint struct{ rsp *reply }

func (endpoint) Ready(context.Context) error                   { return nil }
func (e endpoint) Call(context.Context, *call) (*reply, error) { return e.rsp, nil }

func bench(b *testing.B, svc service) {
	b.Helper()
	ctx := layer.WithRoute(context.Background(), &layer.Route{Labels: map[string]string{"route": "r"}})
	req := get("/api/vote")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIdle(b *testing.B) {
	inner := endpoint{&reply{status: 200}}
	b.Run("endpoint", func(b *testing.B) { bench(b, inner) })
	b.Run("noop", func(b *testing.B) { bench(b, noop{inner}) })
	b.Run("tap", func(b *testing.B) { bench(b, stand(new(Registry), inner)) })
	b.Run("explain", func(b *testing.B) { bench(b, Explain(new(Registry), newAccess())(inner)) })
}

func BenchmarkWatched(b *testing.B) {
	inner := endpoint{&reply{status: 200}}
	b.Run("matching_nothing", func(b *testing.B) {
		reg := new(Registry)
		watch(b, reg, match.All(match.Method("GET"), match.PathPrefix("/other/")), 1, false)
		bench(b, stand(reg, inner))
	})
	b.Run("matching_nothing_by_route", func(b *testing.B) {
		reg := new(Registry)
		watch(b, reg, match.RouteLabel("route", "other"), 1, false)
		bench(b, stand(reg, inner))
	})
	b.Run("matching_nothing_by_header", func(b *testing.B) {
		reg := new(Registry)
		watchOn(b, reg, &tappb.WatchRequest{Headers: []*tappb.HeaderMatch{having("X-Team", true)}})
		bench(b, stand(reg, inner))
	})
	b.Run("none_of_a_sample", func(b *testing.B) {
		reg := new(Registry)
		watchOn(b, reg, &tappb.WatchRequest{Sample: 1e-18})
		bench(b, stand(reg, inner))
	})
	b.Run("kept_back_and_let_go", func(b *testing.B) {
		reg := new(Registry)
		watchOn(b, reg, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}})
		bench(b, stand(reg, inner))
	})
	b.Run("everything_never_read", func(b *testing.B) {
		reg := new(Registry)
		watch(b, reg, match.All(), 1<<32-1, false)
		bench(b, stand(reg, inner))
	})
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprintf("everything_drained/%d", n), func(b *testing.B) { benchDrained(b, inner, n) })
	}
}

// benchDrained reads the events of each watcher after each request, so that
// none is dropped. It measures the whole cost without that of sending.
func benchDrained(b *testing.B, inner service, n int) {
	b.Helper()
	reg := new(Registry)
	watchers := make([]*watcher, n)
	for i := range watchers {
		watchers[i] = watch(b, reg, match.All(), 1<<32-1, false)
	}
	svc := stand(reg, inner)
	req := get("/api/vote")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = svc.Call(context.Background(), req)
		for _, w := range watchers {
			for unread := w.buf.Load(); len(unread.events) > 0; {
				unread.releaseEvent(<-unread.events)
			}
		}
	}
	for _, w := range watchers {
		require.Zero(b, w.dropped.Load())
	}
}

// BenchmarkObserve is a request and its three events over a real gRPC stream,
// of as many requests as fit in the buffer of a watcher.
func BenchmarkObserve(b *testing.B) {
	p := listen(b, NewServer(new(Registry)), nil)
	svc := stand(p.reg, endpoint{&reply{status: 200}})
	stream := p.observe(b.Context(), b, all(1<<32-1))
	req := get("/api/vote")
	b.ReportAllocs()
	for unread := 0; b.Loop(); {
		_, _ = svc.Call(context.Background(), req)
		if unread += 3; unread < defaultMaxEvents-3 {
			continue
		}
		for ; unread > 0; unread-- {
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// shownOf are the events of one request, as a watcher gets them.
func shownOf(t testing.TB, fields bool) []Event {
	t.Helper()
	reg := new(Registry)
	w := watchOn(t, reg, nil)
	w.fields = fields
	svc := stand(reg, endpoint{&reply{status: 200}})
	_, _ = svc.Call(context.Background(), get("/api/vote"))
	return events(w)
}

// BenchmarkEncode encodes the three events of a request.
func BenchmarkEncode(b *testing.B) {
	all := shownOf(b, false)
	b.Run("observe", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range all {
				_, _ = proto.Marshal(all[i].proto())
			}
		}
	})
	b.Run("watch", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for i := range all {
				m := all[i].watchProto()
				_, _ = proto.Marshal(m)
			}
		}
	})
}

// countAll starts to count the requests that req specifies.
func countAll(t testing.TB, reg *Registry, req *tappb.TopRequest) *counter {
	t.Helper()
	c, err := reg.count(req)
	require.NoError(t, err)
	t.Cleanup(func() { reg.detach(c) })
	return c
}

// plainAccess is fakeAccess without the cost of its ObserveResponse.
type plainAccess struct{ fakeAccess }

func (plainAccess) ObserveResponse(_ context.Context, r *reply, o layer.Observer) *reply {
	o.End(nil)
	return r
}

func standPlain(reg *Registry, inner service) service {
	return Layer[*call, *reply](reg, plainAccess{newAccess()}, Outbound, WithDestination(serverAddr, podLabels))(inner)
}

// BenchmarkCounted is a request with a Top watcher and no other.
func BenchmarkCounted(b *testing.B) {
	inner := endpoint{&reply{status: 200}}
	b.Run("one", func(b *testing.B) {
		reg := new(Registry)
		countAll(b, reg, nil)
		bench(b, standPlain(reg, inner))
	})
	b.Run("matching_nothing", func(b *testing.B) {
		reg := new(Registry)
		countAll(b, reg, &tappb.TopRequest{Match: match.All(match.Method("GET"), match.PathPrefix("/other/"))})
		bench(b, standPlain(reg, inner))
	})
	b.Run("by_route", func(b *testing.B) {
		reg := new(Registry)
		countAll(b, reg, &tappb.TopRequest{ByRoute: true})
		bench(b, standPlain(reg, inner))
	})
	b.Run("parallel", func(b *testing.B) {
		reg := new(Registry)
		countAll(b, reg, nil)
		svc := standPlain(reg, inner)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			req := get("/api/vote")
			for pb.Next() {
				_, _ = svc.Call(context.Background(), req)
			}
		})
	})
	b.Run("full", func(b *testing.B) { // every path is new
		reg := new(Registry)
		c := countAll(b, reg, nil)
		fill(c.rows, maxRows)
		bench(b, standPlain(reg, inner))
	})
}

func fill(t *table, n int) {
	for i := range n {
		about := Event{Direction: Inbound, Source: netip.AddrPortFrom(clientAddr.Addr(), uint16(i)), DestinationLabels: podLabels}
		init := &RequestInit{Method: "GET", Path: fmt.Sprintf("/items/%d", i), Authority: "web"}
		for n := range i%7 + 1 {
			t.begin(&about, init, "", time.Now()).end(&ResponseEnd{SinceRequestInit: time.Duration(i*n) * time.Microsecond}, 200, time.Now())
		}
	}
}

// BenchmarkAnswer is one update.
func BenchmarkAnswer(b *testing.B) {
	t := newTable(nil)
	fill(t, maxRows)
	for _, most := range []uint32{defaultRows, maxRows} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.Len(b, t.answer(most).GetRows(), int(most))
			}
		})
	}
}
