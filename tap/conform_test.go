package tap

import (
	"context"
	"net/netip"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

type (
	testReq = *layertest.Request
	testRsp = *layertest.Response
)

// testAccess returns constant values for requests, and implements the methods for bodies.
type testAccess struct{ BaseAccessor[testReq, testRsp] }

var noFields layer.Header = fields{}

func (testAccess) Method(testReq) string                { return "GET" }
func (testAccess) Scheme(testReq) string                { return "" }
func (testAccess) Authority(testReq) string             { return "" }
func (testAccess) Path(testReq) string                  { return "/" }
func (testAccess) Query(testReq) string                 { return "" }
func (testAccess) Source(testReq) netip.AddrPort        { return netip.AddrPort{} }
func (testAccess) RequestHeader(testReq) layer.Header   { return noFields }
func (testAccess) Status(testRsp) int                   { return 200 }
func (testAccess) ResponseHeader(testRsp) layer.Header  { return &fields{} }
func (testAccess) ResponseTrailer(testRsp) layer.Header { return &fields{} }
func (testAccess) ObserveResponse(ctx context.Context, r testRsp, o layer.Observer) testRsp {
	return layer.AtEnd[testRsp]()(ctx, r, o)
}

// The invariants of layers hold without watchers, with watchers of other
// requests, and with many watchers that do not read.
func TestConform(t *testing.T) {
	tapped := func(reg *Registry) layer.Layer[testReq, testRsp] { return Layer(reg, testAccess{}) }
	t.Run("idle", func(t *testing.T) {
		layertest.Run(t, layertest.Layer{Layer: tapped(new(Registry)), Transparent: true})
	})
	t.Run("watched without match", func(t *testing.T) {
		reg := new(Registry)
		watch(t, reg, match.Method("PUT"), 1<<32-1, true)
		layertest.Run(t, layertest.Layer{Layer: tapped(reg), Transparent: true})
	})
	t.Run("two watchers that do not read", func(t *testing.T) {
		reg := new(Registry)
		watch(t, reg, match.All(), 1<<32-1, true)
		w := watch(t, reg, match.All(), 1<<32-1, false)
		layertest.Run(t, layertest.Layer{Layer: tapped(reg)})
		if n := w.inFlight.Load(); n != 0 {
			t.Errorf("%d requests never ended", n)
		}
	})
	t.Run("one watcher with all features", func(t *testing.T) {
		reg := NewRegistry(WithBodies(100, asItIs))
		w := watchOn(t, reg, &tappb.WatchRequest{
			Response: &tappb.ResponseMatch{Failures: true}, Sample: .9, Fields: true, Explain: true, BodyBytes: 9,
		})
		layertest.Run(t, layertest.Layer{Layer: tapped(reg)})
		if n := w.inFlight.Load() + w.buf.Load().held.Load(); n != 0 {
			t.Errorf("%d requests never ended", n)
		}
	})
	t.Run("one watcher that reads", func(t *testing.T) {
		layertest.Run(t, layertest.Layer{New: func(
			ctx context.Context, next layer.Service[testReq, testRsp],
		) layer.Service[testReq, testRsp] {
			reg := new(Registry)
			c, _ := compile(match.All())
			w, _ := reg.watch(terms{match: c, limit: 1<<32 - 1, fields: true})
			go func() {
				defer reg.close(w)
				for {
					select {
					case e := <-w.buf.Load().events:
						w.buf.Load().releaseEvent(e)
					case <-ctx.Done():
						return
					}
				}
			}()
			return tapped(reg)(next)
		}})
	})
}
