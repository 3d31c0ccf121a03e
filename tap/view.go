package tap

import (
	"context"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// view reads a request no further than asked, and nothing twice: some fields
// are dear (a path may have to be escaped, an address parsed), and several
// conditions of several watchers look at the same.
type view[Req, Rsp any] struct {
	access layer.Accessor[Req, Rsp]
	place  *place
	ctx    context.Context //nolint:containedctx // a view lives as long as its call
	req    Req

	known                          field
	methodV, schemeV, hostV, pathV string
	sourceV, destinationV          netip.AddrPort
	routeV                         map[string]string
	drawV                          float64
}

type field uint16

const (
	fieldMethod field = 1 << iota
	fieldScheme
	fieldAuthority
	fieldPath
	fieldSource
	fieldDestination
	fieldRoute
	fieldDraw
)

// fresh reports whether f is read for the first time.
func (v *view[Req, Rsp]) fresh(f field) bool {
	if v.known&f != 0 {
		return false
	}
	v.known |= f
	return true
}

func (v *view[Req, Rsp]) method() string {
	if v.fresh(fieldMethod) {
		v.methodV = v.access.Method(v.req)
	}
	return v.methodV
}

func (v *view[Req, Rsp]) scheme() string {
	if v.fresh(fieldScheme) {
		v.schemeV = v.access.Scheme(v.req)
	}
	return v.schemeV
}

func (v *view[Req, Rsp]) authority() string {
	if v.fresh(fieldAuthority) {
		v.hostV = withoutUser(v.access.Authority(v.req))
	}
	return v.hostV
}

func (v *view[Req, Rsp]) path() string {
	if v.fresh(fieldPath) {
		v.pathV = v.access.Path(v.req)
	}
	return v.pathV
}

func (v *view[Req, Rsp]) source() netip.AddrPort {
	if v.fresh(fieldSource) {
		v.sourceV = plain(v.access.Source(v.req))
	}
	return v.sourceV
}

func (v *view[Req, Rsp]) destination() netip.AddrPort {
	if v.place.destination.IsValid() {
		return v.place.destination
	}
	if v.fresh(fieldDestination) {
		if at, ok := v.access.(Destinationer[Req]); ok {
			v.destinationV = plain(at.DestinationAddr(v.ctx, v.req))
		}
	}
	return v.destinationV
}

// answer is what finds the response that an error stands for, or nil.
func (v *view[Req, Rsp]) answer() func(error) (Rsp, bool) {
	a, ok := v.access.(ErrorResponder[Req, Rsp])
	if !ok {
		return nil
	}
	ctx, req := v.ctx, v.req
	return func(err error) (Rsp, bool) { return a.ErrorResponse(ctx, req, err) }
}

// route returns nil when no route matched.
func (v *view[Req, Rsp]) route() map[string]string {
	if v.fresh(fieldRoute) {
		if r := layer.RouteFromContext(v.ctx); r != nil {
			v.routeV = r.Labels
			if v.routeV == nil {
				v.routeV = map[string]string{}
			}
		}
	}
	return v.routeV
}

// draw returns a number from 0 to 1, the same for all watchers of a request, so
// that watchers with the same sample see the same requests.
func (v *view[Req, Rsp]) draw(r *Registry) float64 {
	if v.fresh(fieldDraw) {
		v.drawV = r.draw()
	}
	return v.drawV
}

// event returns what all events of the request have, with the source labels of the
// layer.
func (v *view[Req, Rsp]) event() Event {
	return Event{
		Direction:         v.place.direction,
		Source:            v.source(),
		Destination:       v.destination(),
		SourceLabels:      v.place.sourceLabels,
		DestinationLabels: v.place.destinationLabels,
		RouteLabels:       v.route(),
	}
}
