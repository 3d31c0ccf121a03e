package tap

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// routedBelow returns a tap of reg above a router that sends "/a" to the route "a", which calls inner,
// and fails for any other path.
func routedBelow(reg *Registry, inner service) service {
	route := Routed[*call, *reply](reg)(inner)
	return Layer[*call, *reply](reg, newAccess(), Inbound, WithRouteBelow())(serve(func(ctx context.Context, c *call) (*reply, error) {
		if c.path != "/a" {
			return nil, errors.New("no route")
		}
		edited := *c
		edited.path = "/edited"
		ctx, cancel := context.WithCancel(layer.WithRoute(ctx, &layer.Route{Labels: map[string]string{"route": "a"}}))
		defer cancel()
		return route.Call(ctx, &edited)
	}))
}

func TestRouteBelow(t *testing.T) {
	reg := new(Registry)
	all := watchAll(t, reg)
	other := watch(t, reg, match.RouteLabel("route", "b"), 100, false)
	counted := countAll(t, reg, &tappb.TopRequest{ByRoute: true})
	svc := routedBelow(reg, serve(func(ctx context.Context, c *call) (*reply, error) {
		assert.Equal(t, "q", kinds(events(all)), "shown before the route sends it")
		assert.Equal(t, "/edited", c.path)
		return respond("hello")(ctx, c)
	}))
	send(t, svc, get("/a"))
	shown := events(all)
	require.Equal(t, "re", kinds(shown))
	assert.Equal(t, map[string]string{"route": "a"}, shown[0].RouteLabels)
	assert.Equal(t, uint64(5), shown[1].ResponseEnd.Bytes)
	assert.Nil(t, shown[1].ResponseEnd.ResetCode)
	_, err := svc.Call(t.Context(), get("/b"))
	require.Error(t, err)
	shown = events(all)
	require.Equal(t, "qe", kinds(shown))
	assert.Equal(t, "/b", shown[0].RequestInit.Path)
	assert.Empty(t, shown[0].RouteLabels)
	assert.Empty(t, events(other))
	assert.Len(t, counted.rows.answer(0).GetRows(), 2)
}

// A panic ends a request that got no route, too.
func TestRouteBelowPanic(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	for _, path := range []string{"/a", "/b"} {
		svc := routedBelow(reg, serve(func(context.Context, *call) (*reply, error) { panic("a") }))
		if path == "/b" {
			svc = Layer[*call, *reply](reg, newAccess(), WithRouteBelow())(serve(func(context.Context, *call) (*reply, error) { panic("b") }))
		}
		require.Panics(t, func() { _, _ = svc.Call(t.Context(), get(path)) })
		assert.Equal(t, "qe", kinds(events(w)), path)
	}
}

// A call that the layer above the router has left behind does not show its request again.
func TestRouteBelowLate(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	arrived, late := make(chan struct{}), make(chan struct{})
	route := Routed[*call, *reply](reg)(respond(""))
	svc := Layer[*call, *reply](reg, newAccess(), WithRouteBelow())(serve(func(ctx context.Context, c *call) (*reply, error) {
		go func() {
			<-late
			_, _ = route.Call(ctx, c)
			close(arrived)
		}()
		return respond("")(ctx, c)
	}))
	send(t, svc, get("/"))
	close(late)
	<-arrived
	assert.Equal(t, "qre", kinds(events(w)))
}

func TestRoutedConform(t *testing.T) {
	for name, watched := range map[string]bool{"idle": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			if watched {
				watch(t, reg, match.All(), 1<<32-1, true)
			}
			layertest.Run(t, layertest.Layer{Layer: func(next layer.Service[testReq, testRsp]) layer.Service[testReq, testRsp] {
				return Layer(reg, testAccess{}, WithRouteBelow())(Routed[testReq, testRsp](reg)(next))
			}, Transparent: !watched})
		})
	}
}
