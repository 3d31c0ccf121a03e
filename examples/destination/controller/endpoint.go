package controller

import (
	"maps"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/gotower/gotower/internal/wire"
)

// unit is the number by which the API represents a weight of 1. An endpoint without a
// configured weight has this weight.
const unit = 10000

// endpointMessage returns ep as a message of the API. ep must be valid.
func endpointMessage(ep Endpoint) *pb.WeightedAddr {
	msg := &pb.WeightedAddr{
		Addr:         wire.TCP(ep.Addr),
		Weight:       ep.Weight,
		MetricLabels: maps.Clone(ep.Labels),
		TlsIdentity:  identityMessage(ep),
	}
	if msg.GetWeight() == 0 {
		msg.Weight = unit
	}
	switch ep.Protocol {
	case H2:
		msg.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}}
	case Opaque:
		msg.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}}
	case Unknown:
	}
	if ep.InboundPort != 0 {
		if msg.GetProtocolHint() == nil {
			msg.ProtocolHint = &pb.ProtocolHint{}
		}
		msg.ProtocolHint.OpaqueTransport = &pb.ProtocolHint_OpaqueTransport{InboundPort: uint32(ep.InboundPort)}
	}
	if ep.Authority != "" {
		msg.AuthorityOverride = &pb.AuthorityOverride{AuthorityOverride: ep.Authority}
	}
	return msg
}

// identityMessage returns the TLS identity of ep, or nil for cleartext. If ep has no server
// name, the message has no server name. Clients then use the identity as the server name.
func identityMessage(ep Endpoint) *pb.TlsIdentity {
	if ep.Identity == "" {
		return nil
	}
	msg := &pb.TlsIdentity{}
	if isURI(ep.Identity) {
		msg.Strategy = &pb.TlsIdentity_UriLikeIdentity_{UriLikeIdentity: &pb.TlsIdentity_UriLikeIdentity{Uri: ep.Identity}}
	} else {
		msg.Strategy = &pb.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: &pb.TlsIdentity_DnsLikeIdentity{Name: ep.Identity}}
	}
	if ep.ServerName != "" {
		msg.ServerName = &pb.TlsIdentity_DnsLikeIdentity{Name: ep.ServerName}
	}
	return msg
}
