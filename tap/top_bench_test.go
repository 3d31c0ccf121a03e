package tap

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// countAll starts to count the requests that req specifies.
func countAll(t testing.TB, reg *Registry, req *tappb.TopRequest) *counter {
	t.Helper()
	c, err := reg.count(req)
	require.NoError(t, err)
	t.Cleanup(func() { reg.detach(c) })
	return c
}

// plainAccess is fakeAccess without the cost of its Complete.
type plainAccess struct{ fakeAccess }

func (plainAccess) Complete(_ context.Context, r *reply, o layer.Observer) *reply {
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
			t.begin(&about, init, time.Now()).end(&ResponseEnd{SinceRequestInit: time.Duration(i*n) * time.Microsecond}, 200, time.Now())
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
