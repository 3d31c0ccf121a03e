package wire

import (
	"fmt"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/resolve"
)

// Endpoint converts an endpoint from a message of linkerd's destination API, as linkerd's proxy does. It returns
// false if the address is invalid. It calls drop with an error for each other part that is invalid and therefore left
// out.
func Endpoint(m *destination.WeightedAddr, drop func(error)) (e resolve.Endpoint, ok bool) {
	addr, err := Addr(m.GetAddr())
	if err != nil {
		drop(fmt.Errorf("endpoint: %w", err))
		return e, false
	}
	e.Addr = addr
	e.Weight = m.GetWeight()
	e.Labels = m.GetMetricLabels()
	// Without valid names, the endpoint is used in cleartext.
	if e.ServerName, e.Identity, err = TLS(m.GetTlsIdentity()); err != nil {
		drop(fmt.Errorf("endpoint %v: %w", addr, err))
	}
	e.Authority = Authority(m)
	e.OpaquePort = OpaquePort(m.GetProtocolHint())
	e.PingInterval, e.PingTimeout, e.PingWhileIdle = KeepAlive(m)
	switch m.GetProtocolHint().GetProtocol().(type) {
	case *destination.ProtocolHint_H2_:
		e.Protocol = resolve.H2
	case *destination.ProtocolHint_Opaque_:
		e.Protocol = resolve.Opaque
	}
	return e, true
}
