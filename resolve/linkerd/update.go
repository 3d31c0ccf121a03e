package linkerd

import (
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/resolve"
)

// update is what a message says, or false if it says nothing: its oneof is
// empty or of a kind that is newer than this code, or none of its addresses can
// be used. What cannot is told to drop.
func update(m *destination.Update, drop func(error)) (resolve.Update, bool) {
	switch m := m.GetUpdate().(type) {
	case *destination.Update_Add:
		u := resolve.Update{Kind: resolve.Add, Endpoints: endpoints(m.Add, drop)}
		return u, len(u.Endpoints) > 0
	case *destination.Update_Remove:
		u := resolve.Update{Kind: resolve.Remove, Removed: removed(m.Remove)}
		return u, len(u.Removed) > 0
	case *destination.Update_NoEndpoints:
		if m.NoEndpoints.GetExists() {
			return resolve.Update{Kind: resolve.Empty}, true
		}
		return resolve.Update{Kind: resolve.DoesNotExist}, true
	}
	return resolve.Update{}, false
}

func endpoints(set *destination.WeightedAddrSet, drop func(error)) []resolve.Endpoint {
	list := make([]resolve.Endpoint, 0, len(set.GetAddrs()))
	for _, a := range set.GetAddrs() {
		if e, ok := endpoint(a, set.GetMetricLabels(), drop); ok {
			list = append(list, e)
		}
	}
	return list
}

// removed are the addresses to take away. What is left out was never there.
func removed(set *destination.AddrSet) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(set.GetAddrs()))
	for _, a := range set.GetAddrs() {
		if addr, err := wire.Addr(a); err == nil {
			list = append(list, addr)
		}
	}
	return list
}
