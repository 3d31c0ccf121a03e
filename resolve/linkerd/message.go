package linkerd

import (
	"fmt"
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

// endpoint converts a WeightedAddr as linkerd's proxy does. setLabels has the labels of the
// set to which the endpoint belongs. endpoint returns false if the address is invalid. It
// calls drop for each part that it ignores.
func endpoint(a *destination.WeightedAddr, setLabels map[string]string, drop func(error)) (resolve.Endpoint, bool) {
	addr, err := wire.Addr(a.GetAddr())
	if err != nil {
		drop(fmt.Errorf("endpoint: %w", err))
		return resolve.Endpoint{}, false
	}
	serverName, identity, err := wire.TLS(a.GetTlsIdentity())
	if err != nil {
		drop(fmt.Errorf("endpoint %v: %w", addr, err))
	}
	interval, timeout := wire.KeepAlive(a)
	return resolve.Endpoint{
		ID: resolve.ID{
			Addr:         addr,
			Protocol:     protocol(a.GetProtocolHint()),
			ServerName:   serverName,
			Identity:     identity,
			Authority:    wire.Authority(a),
			OpaquePort:   wire.OpaquePort(a.GetProtocolHint()),
			PingInterval: interval,
			PingTimeout:  timeout,
		},
		Weight: a.GetWeight(),
		Labels: labels(setLabels, a.GetMetricLabels()),
	}, true
}

// labels returns the labels of an endpoint: the labels in set, overridden by those in the argument
// own. If own is empty, labels returns set itself.
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

func protocol(hint *destination.ProtocolHint) resolve.Protocol {
	switch hint.GetProtocol().(type) {
	case *destination.ProtocolHint_H2_:
		return resolve.H2
	case *destination.ProtocolHint_Opaque_:
		return resolve.Opaque
	}
	return resolve.Unknown
}
