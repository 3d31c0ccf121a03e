package tap

import (
	"context"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// choosing is a layer that explains its choice.
func choosing(says string, asked *int) layer.Layer[*call, *reply] {
	return func(next service) service {
		return serve(func(ctx context.Context, c *call) (*reply, error) {
			if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
				*asked++
				why.Add(layer.Node{
					Name: "choice", State: layer.State{{Key: "of", Value: says}, {Key: "n", Value: *asked}},
					Children: []layer.Node{{Name: "other"}},
				})
			}
			return next.Call(ctx, c)
		})
	}
}

func TestExplain(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	asked := 0
	svc := Explain(p.reg, newAccess())(choosing("the endpoint", &asked)(stand(p.reg, respond("x"))))
	send(t, svc, get("/"))
	plain := watchOn(t, p.reg, &tappb.WatchRequest{})
	send(t, svc, get("/"))
	require.Zero(t, asked, "a watcher without Explain records no choices")
	require.Nil(t, readAll(plain)[2].ResponseEnd.Explanation)

	ctx, cancel := context.WithCancel(t.Context())
	stream := p.watch(ctx, t, &tappb.WatchRequest{Explain: true})
	send(t, svc, get("/"))
	require.Equal(t, 1, asked)
	got := []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)}
	require.Equal(t, []layer.Node{{
		Name: "choice", State: layer.State{{Key: "of", Value: "the endpoint"}, {Key: "n", Value: "1"}},
		Children: []layer.Node{{Name: "other"}},
	}}, got[2].ResponseEnd.Explanation)
	require.Nil(t, readAll(plain)[2].ResponseEnd.Explanation)

	cancel()
	<-p.ended
	send(t, svc, get("/"))
	require.Equal(t, 1, asked, "the watcher with Explain has ended")
}

func TestExplainEndsAtTheLimit(t *testing.T) {
	reg := new(Registry)
	asked := 0
	svc := Explain(reg, newAccess())(choosing("x", &asked)(stand(reg, respond("x"))))
	require.Equal(t, "explain    on=false\nlayer.Func\n", layer.Describe(svc).String())
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true, Limit: 1})
	require.Equal(t, "explain    on=true\nlayer.Func\n", layer.Describe(svc).String())
	send(t, svc, get("/"))
	reg.refresh()
	send(t, svc, get("/"))
	require.Equal(t, 1, asked)
	require.Equal(t, "qre", kinds(events(w)))
	require.Equal(t, "explain    on=false\nlayer.Func\n", layer.Describe(svc).String())
}

// converted counts how often it is converted to text.
type converted struct{ n *int }

func (c converted) String() string { *c.n++; return "x" }

// An explanation is converted only if its request is shown, because this takes time.
func TestExplainOutcome(t *testing.T) {
	reg, n, status := new(Registry), 0, 200
	svc := Explain(reg, newAccess())(serve(func(ctx context.Context, c *call) (*reply, error) {
		layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{State: layer.State{{Key: "k", Value: converted{&n}}}})
		return stand(reg, serve(func(context.Context, *call) (*reply, error) { return &reply{status: status}, nil })).Call(ctx, c)
	}))
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true, Response: &tappb.ResponseMatch{Failures: true}})
	for _, status = range []int{200, 500, 404, 501} {
		_, err := svc.Call(t.Context(), get("/"))
		require.NoError(t, err)
	}
	require.Equal(t, "qreqre", kinds(events(w)))
	require.Equal(t, 2, n)
}

// A caller that requests an explanation and a watcher get the same one.
func TestExplainSharesWithCaller(t *testing.T) {
	reg := new(Registry)
	asked := 0
	svc := Explain(reg, newAccess())(choosing("x", &asked)(stand(reg, respond("x"))))
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true})
	ctx, why := layer.Explain(t.Context())
	_, err := svc.Call(ctx, get("/"))
	require.NoError(t, err)
	require.Len(t, why.Choices(), 1)
	require.NotEmpty(t, w)
}

func TestExplainIdle(t *testing.T) {
	for name, reg := range map[string]*Registry{"nil": nil, "idle": new(Registry), "watched": new(Registry)} {
		if name == "watched" {
			watch(t, reg, match.All(), 1, true)
		}
		want := &reply{}
		svc := Explain(reg, newAccess())(serve(func(context.Context, *call) (*reply, error) { return want, nil }))
		var ctx context.Context = mute{context.Background(), t}
		req := get("/")
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if got, _ := svc.Call(ctx, req); got != want {
				t.Error("not passed through")
			}
		}))
	}
}

func TestExplainConforms(t *testing.T) {
	for _, on := range []bool{false, true} {
		reg := new(Registry)
		if on {
			watchOn(t, reg, &tappb.WatchRequest{Explain: true})
		}
		layertest.Run(t, layertest.Layer{Layer: Explain[testReq, testRsp](reg, nil), Transparent: !on})
	}
}

// Explanations take room in the buffer, as all text does.
func TestMemoryOfExplanations(t *testing.T) {
	reg := new(Registry)
	svc := Explain(reg, newAccess())(serve(func(ctx context.Context, c *call) (*reply, error) {
		layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{
			Name: "big", Next: &layer.Node{Name: strings.Repeat("n", 10<<10)},
			Children: []layer.Node{{State: layer.State{{Key: "k", Value: strings.Repeat("v", 10<<10)}}}},
		})
		return stand(reg, serve(func(context.Context, *call) (*reply, error) { return &reply{}, nil })).Call(ctx, c)
	}))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	w := watchOn(t, reg, &tappb.WatchRequest{Explain: true})
	for range 200 {
		_, err := svc.Call(t.Context(), get("/"))
		require.NoError(t, err)
	}
	require.Less(t, heap()-before, int64(1<<20))
	require.Positive(t, w.dropped.Load())
	require.NotEmpty(t, events(w))
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
}

// labelledAccess returns labels of the client of each request.
type labelledAccess struct{ fakeAccess }

func (labelledAccess) SourceLabels(c *call) map[string]string {
	if c.path == "/unknown" {
		return nil
	}
	return map[string]string{"tls": "true", "client_id": c.path}
}

// podAccess returns the pod of each client.
type podAccess struct{ fakeAccess }

func (podAccess) SourceLabels(*call) map[string]string { return map[string]string{"pod": "client-1"} }

// A request is in the same row with and without watchers.
func TestRowNamesWatchedOrNot(t *testing.T) {
	reg := new(Registry)
	c := countAll(t, reg, nil)
	svc := Layer[*call, *reply](reg, podAccess{newAccess()}, Inbound)(respond("x"))
	send(t, svc, get("/"))
	watchAll(t, reg)
	send(t, svc, get("/"))
	require.EqualValues(t, 2, only(t, c).GetCount())
}

// The labels of source_meta and destination_meta.
func TestLabels(t *testing.T) {
	type labels = map[string]string
	for name, tt := range map[string]struct {
		opts        []Option
		path        string
		source, dst labels
	}{
		"inbound":                       {[]Option{Inbound}, "/web", labels{"tls": "true", "client_id": "/web"}, labels{}},
		"inbound, more is known of all": {[]Option{Inbound, WithSourceLabels(labels{"tls": "passthru", "sni": "x"})}, "/web", labels{"tls": "passthru", "sni": "x", "client_id": "/web"}, labels{}},
		"inbound, nothing is known":     {[]Option{Inbound, WithSourceLabels(labels{"a": "b"})}, "/unknown", labels{"a": "b"}, labels{}},
		"inbound, destination":          {[]Option{Inbound, WithDestination(netip.AddrPort{}, labels{"tls": "loopback"})}, "/unknown", labels{}, labels{"tls": "loopback"}},
		"outbound":                      {[]Option{Outbound, WithSourceLabels(hostLabels), WithDestination(serverAddr, podLabels)}, "/web", hostLabels, podLabels},
	} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			w := watchOn(t, reg, &tappb.WatchRequest{})
			send(t, Layer[*call, *reply](reg, labelledAccess{newAccess()}, tt.opts...)(respond("x")), get(tt.path))
			got := events(w)
			require.Equal(t, "qre", kinds(got))
			for _, e := range got {
				require.Equal(t, tt.source, e.SourceLabels)
				require.Equal(t, tt.dst, e.DestinationLabels)
			}
		})
	}
}
