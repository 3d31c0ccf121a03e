package linkerd

import (
	"fmt"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/profiles"
)

// convertEndpoint reads the one endpoint of a profile as linkerd's proxy does,
// or returns nil if it has no address that can be connected to. What is left out
// is told to drop. HTTP/2 parameters and the resource reference are not used.
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
	return &profiles.Endpoint{
		Addr: addr, Labels: m.GetMetricLabels(), Weight: m.GetWeight(),
		Protocol:   convertProtocol(m.GetProtocolHint()),
		ServerName: serverName, Identity: identity,
		Authority:  wire.Authority(m),
		OpaquePort: wire.OpaquePort(m.GetProtocolHint()),
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
