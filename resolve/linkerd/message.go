package linkerd

import (
	"maps"
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/resolve"
)

// update converts a message to an update. It returns false for a message of an unknown kind, and
// for an Add or Remove without a valid address. It calls drop for each part that it ignores.
func update(m *destination.Update, drop func(error)) (resolve.Update, bool) {
	switch m := m.GetUpdate().(type) {
	case *destination.Update_Add:
		u := resolve.Update{Kind: resolve.Add, Endpoints: endpoints(m.Add, drop)}
		// An Add of which nothing can be used says nothing about the target.
		return u, len(u.Endpoints) > 0
	case *destination.Update_Remove:
		u := resolve.Update{Kind: resolve.Remove, Removed: removed(m.Remove)}
		return u, len(u.Removed) > 0
	case *destination.Update_NoEndpoints:
		// The controller distinguishes a service without endpoints from one that is unknown.
		if m.NoEndpoints.GetExists() {
			return resolve.Update{Kind: resolve.Empty}, true
		}
		return resolve.Update{Kind: resolve.DoesNotExist}, true
	}
	return resolve.Update{}, false
}

// endpoints converts the addresses in set, and calls drop for each part that it ignores.
func endpoints(set *destination.WeightedAddrSet, drop func(error)) []resolve.Endpoint {
	list := make([]resolve.Endpoint, 0, len(set.GetAddrs()))
	for _, a := range set.GetAddrs() {
		if e, ok := endpoint(a, set.GetMetricLabels(), drop); ok {
			list = append(list, e)
		}
	}
	return list
}

// removed returns the addresses in set as addresses to remove. It omits invalid addresses,
// because they were never added.
func removed(set *destination.AddrSet) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(set.GetAddrs()))
	for _, a := range set.GetAddrs() {
		if addr, err := wire.Addr(a); err == nil {
			list = append(list, addr)
		}
	}
	return list
}

// endpoint converts a WeightedAddr like linkerd's proxy. setLabels are those of the set to which
// the endpoint belongs. endpoint returns false if the address is invalid. It calls drop for each
// part that it ignores.
func endpoint(a *destination.WeightedAddr, setLabels map[string]string, drop func(error)) (resolve.Endpoint, bool) {
	// wire.Endpoint converts what does not depend on the set.
	e, ok := wire.Endpoint(a, drop)
	if !ok {
		return e, false
	}
	e.Labels = labels(setLabels, e.Labels)
	// The controller sends the zone as a label only.
	e.Locality = e.Labels["zone"]
	return e, true
}

// labels returns an endpoint's labels: the labels in set, overridden by those in own. If own is
// empty, labels returns set itself.
func labels(set, own map[string]string) map[string]string {
	switch {
	case len(own) == 0:
		return set
	case len(set) == 0:
		return own
	}
	all := maps.Clone(set)
	maps.Copy(all, own)
	return all
}
