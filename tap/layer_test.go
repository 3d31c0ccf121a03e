package tap

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
)

// mute is a context that fails the test if a value is looked up in it.
type mute struct {
	context.Context
	t *testing.T
}

func (m mute) Value(any) any {
	m.t.Error("looked up in the context")
	return nil
}

func TestLayerRejectsNilAccessor(t *testing.T) {
	require.PanicsWithValue(t, "tap: Layer: nil Accessor", func() { Layer[*call, *reply](nil, nil) })
}

func TestLayerIdle(t *testing.T) {
	a := newAccess()
	want := &reply{status: 200}
	svc := Layer[*call, *reply](new(Registry), a)(serve(func(context.Context, *call) (*reply, error) { return want, nil }))
	var ctx context.Context = mute{context.Background(), t}
	req := get("/")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		got, err := svc.Call(ctx, req)
		if got != want || err != nil {
			t.Error("not passed through")
		}
	}))
	require.Zero(t, a.request()+a.status.Load()+a.response.Load())
}

func TestLayerUnmatchedAllocations(t *testing.T) {
	reg := new(Registry)
	watch(t, reg, match.All(match.Method("GET"), match.SourcePorts(1, 1)), 1, false)
	watch(t, reg, match.RouteLabel("route", "other"), 1, true)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { return nil, nil }))
	ctx := layer.WithRoute(context.Background(), &layer.Route{Labels: map[string]string{"route": "this"}})
	req := get("/")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(ctx, req) }))
}

func TestLayerIdleAfterWatch(t *testing.T) {
	reg := new(Registry)
	c, err := compile(match.All())
	require.NoError(t, err)
	w, err := reg.watch(terms{match: c, limit: 1})
	require.NoError(t, err)
	require.NotNil(t, reg.active.Load())
	reg.close(w)
	require.Nil(t, reg.active.Load())
}

func TestZeroAndNilRegistry(t *testing.T) {
	send(t, Layer[*call, *reply](nil, newAccess())(respond("x")), get("/"))
	reg := new(Registry)
	w := watchAll(t, reg)
	send(t, stand(reg, respond("x")), get("/"))
	require.Equal(t, "qre", kinds(events(w)))
}

func TestReadyIsForwarded(t *testing.T) {
	closed := stand(new(Registry), shut{})
	require.ErrorIs(t, closed.Ready(t.Context()), layer.ErrClosed)
	require.ErrorIs(t, layer.Poll(closed), layer.ErrClosed)
}

type shut struct{}

func (shut) Ready(context.Context) error { return layer.ErrClosed }
func (shut) Call(context.Context, *call) (*reply, error) {
	return nil, &layer.Error{Layer: "shut", Kind: layer.ErrClosed}
}

func TestLayerForwardsErrors(t *testing.T) {
	boom := errors.New("boom")
	reg := new(Registry)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { return &reply{status: 1}, boom }))
	for range 2 { // idle, then watched
		rsp, err := svc.Call(t.Context(), get("/"))
		require.Same(t, boom, err)
		require.Equal(t, 1, rsp.status)
		watchAll(t, reg)
	}
}

func TestLayerEndedContext(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	cancel(cause)
	_, err := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		t.Error("the endpoint was called")
		return nil, nil
	})).Call(ctx, get("/"))
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, cause)
	require.Empty(t, events(w))
	require.Zero(t, w.seen.Load())
}

// A rejected request is shown before it is rejected.
func TestLayerRejectionEvents(t *testing.T) {
	for _, watched := range []bool{false, true} {
		reg := new(Registry)
		var w *watcher
		if watched {
			w = watch(t, reg, match.All(), 10, true)
		}
		req := get("/")
		req.header = fields{{"Authorization", "secret"}}
		_, err := stand(reg, shut{}).Call(t.Context(), req)
		require.ErrorIs(t, err, layer.ErrClosed)
		require.Equal(t, fields{{"Authorization", "secret"}}, req.header, "the request is untouched")
		if !watched {
			continue
		}
		all := events(w)
		require.Equal(t, "qe", kinds(all))
		end := all[1].ResponseEnd
		require.Equal(t, uint32(7), *end.ResetCode, "REFUSED_STREAM")
		require.Nil(t, end.SinceResponseInit)
	}
}

func TestLayerHangingRequest(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		require.Equal(t, "q", kinds(events(w)), "before the endpoint answered")
		return respond("x")(t.Context(), nil)
	}))
	send(t, svc, get("/"))
	require.Equal(t, "re", kinds(events(w)))
}

func TestLayerPanic(t *testing.T) {
	reg := new(Registry)
	w := watch(t, reg, match.All(), 1, false)
	svc := stand(reg, serve(func(context.Context, *call) (*reply, error) { panic("boom") }))
	require.PanicsWithValue(t, "boom", func() { _, _ = svc.Call(t.Context(), get("/")) })
	all := events(w)
	require.Equal(t, "qe", kinds(all))
	require.Nil(t, all[1].ResponseEnd.ResetCode)
	require.True(t, isDone(w))
}

func TestLayerUnwatchedResponse(t *testing.T) {
	reg := new(Registry)
	watch(t, reg, match.Method("PUT"), 1, false)
	body := io.NopCloser(strings.NewReader(""))
	rsp, err := stand(reg, serve(func(context.Context, *call) (*reply, error) {
		return &reply{Body: body}, nil
	})).Call(t.Context(), get("/"))
	require.NoError(t, err)
	require.Equal(t, body, rsp.Body, "not wrapped")
}

func TestDescribe(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 1))
	svc := stand(reg, respond("x"))
	require.Equal(t, "tap        watching=0 dropped=0\nlayer.Func\n", layer.Describe(svc).String())
	w := watch(t, reg, match.All(), 2, false)
	for range 3 {
		send(t, svc, get("/"))
	}
	// The first: init taken, two dropped. The second: init dropped, so nothing
	// more is tried. The third is beyond the limit.
	require.Equal(t, "tap        watching=1 dropped=3\nlayer.Func\n", layer.Describe(svc).String())
	require.Equal(t, "tap        watching=1 dropped=3\n"+
		"  watcher    base=0 seen=2 limit=2 in_flight=0 dropped=3\n", reg.Describe().String())
	reg.close(w)
	require.Equal(t, "tap        watching=0 dropped=3\n", reg.Describe().String(), "the count outlives the watcher")
}

func TestSourceAddressesComparable(t *testing.T) {
	for in, want := range map[string]string{
		"[::ffff:10.0.0.1]:80": "10.0.0.1:80",
		"[fe80::1%eth0]:80":    "[fe80::1]:80",
		"10.0.0.1:80":          "10.0.0.1:80",
	} {
		require.Equal(t, netip.MustParseAddrPort(want), normalizeAddr(netip.MustParseAddrPort(in)))
	}
	require.Equal(t, netip.AddrPort{}, normalizeAddr(netip.AddrPortFrom(netip.Addr{}, 80)))
}

func TestLabelsCopied(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	labels := map[string]string{"pod": "a"}
	svc := Layer[*call, *reply](reg, newAccess(), WithDestination(serverAddr, labels))(respond("x"))
	labels["pod"] = "b"
	send(t, svc, get("/"))
	require.Equal(t, map[string]string{"pod": "a"}, events(w)[0].DestinationLabels)
}

func TestDirectionString(t *testing.T) {
	require.Equal(t, "inbound outbound unknown",
		Inbound.String()+" "+Outbound.String()+" "+Direction(0).String())
}
