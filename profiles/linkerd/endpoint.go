package linkerd

import (
	"fmt"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/profiles"
)

// convertEndpoint converts the endpoint of a profile as linkerd's proxy does. It
// returns nil if the address cannot be connected to. Each part that is ignored is
// reported to drop.
func convertEndpoint(m *destination.WeightedAddr, drop func(error)) *profiles.Endpoint {
	addr, err := wire.Addr(m.GetAddr())
	if err != nil {
		drop(fmt.Errorf("endpoint: %w", err))
		return nil
	}
	serverName, identity, err := wire.TLS(m.GetTlsIdentity())
	if err != nil {
		drop(fmt.Errorf("endpoint: %w", err))
	}
	interval, timeout := wire.KeepAlive(m)
	return &profiles.Endpoint{
		Addr: addr, Labels: m.GetMetricLabels(), Weight: m.GetWeight(),
		Protocol:   convertProtocol(m.GetProtocolHint()),
		ServerName: serverName, Identity: identity,
		Authority:  wire.Authority(m),
		OpaquePort: wire.OpaquePort(m.GetProtocolHint()),

		PingInterval: interval, PingTimeout: timeout,
	}
}

func convertProtocol(hint *destination.ProtocolHint) profiles.Protocol {
	switch hint.GetProtocol().(type) {
	case *destination.ProtocolHint_H2_:
		return profiles.H2Protocol
	case *destination.ProtocolHint_Opaque_:
		return profiles.OpaqueProtocol
	}
	return profiles.UnknownProtocol
}
