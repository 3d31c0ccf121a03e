package linkerd

import (
	"fmt"
	"maps"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/resolve"
)

// endpoint is a WeightedAddr as linkerd's proxy reads it, or false if it has no
// address that can be connected to. setLabels are those of the set that a is in.
// What cannot be used of it is told to drop. HTTP/2 parameters and the resource
// reference are not used.
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
	return resolve.Endpoint{
		ID: resolve.ID{
			Addr:       addr,
			Protocol:   protocol(a.GetProtocolHint()),
			ServerName: serverName,
			Identity:   identity,
			Authority:  wire.Authority(a),
			OpaquePort: wire.OpaquePort(a.GetProtocolHint()),
		},
		Weight: a.GetWeight(),
		Labels: labels(setLabels, a.GetMetricLabels()),
	}, true
}

// labels overlays the labels of a set with those of one address. Endpoints
// without any of their own share the map of their set.
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
