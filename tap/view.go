package tap

import (
	"context"
	"net/netip"
	"strings"

	"github.com/gotower/gotower/layer"
)

// view reads a request no further than asked, and nothing twice: some fields
// are dear (a path may have to be escaped, an address parsed), and several
// conditions of several watchers look at the same.
type view[Req, Rsp any] struct {
	access layer.Access[Req, Rsp]
	place  *place
	ctx    context.Context //nolint:containedctx // a view lives as long as its call
	req    Req

	known                          field
	methodV, schemeV, hostV, pathV string
	sourceV                        netip.AddrPort
	routeV                         map[string]string
}

type field uint8

const (
	fieldMethod field = 1 << iota
	fieldScheme
	fieldAuthority
	fieldPath
	fieldSource
	fieldRoute
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

// authority is without user information: it may hold a password.
func (v *view[Req, Rsp]) authority() string {
	if v.fresh(fieldAuthority) {
		v.hostV = v.access.Authority(v.req)
		if at := strings.LastIndexByte(v.hostV, '@'); at >= 0 {
			v.hostV = v.hostV[at+1:]
		}
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

// route returns nil when no route matched.
func (v *view[Req, Rsp]) route() map[string]string {
	if v.fresh(fieldRoute) {
		if r := layer.RouteOf(v.ctx); r != nil {
			v.routeV = r.Labels
			if v.routeV == nil {
				v.routeV = map[string]string{}
			}
		}
	}
	return v.routeV
}
