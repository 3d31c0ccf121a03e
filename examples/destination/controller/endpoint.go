package controller

import (
	"maps"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
)

// unit is how the API writes a weight of 1, the default.
const unit = 10000

// endpointMessage returns ep, which must be valid, as an API message.
func endpointMessage(ep Endpoint) *pb.WeightedAddr {
	msg := &pb.WeightedAddr{
		Addr:         wire.TCP(ep.Addr),
		Weight:       ep.Weight,
		MetricLabels: maps.Clone(ep.Labels),
		TlsIdentity:  identityMessage(ep),
	}
	// A weight of 0 in the API would mean no traffic.
	if msg.GetWeight() == 0 {
		msg.Weight = unit
	}
	switch ep.Protocol {
	case H2:
		msg.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_H2_{H2: &pb.ProtocolHint_H2{}}}
		msg.Http2 = &pb.Http2ClientParams{KeepAlive: keepAlive()}
	case Opaque:
		msg.ProtocolHint = &pb.ProtocolHint{Protocol: &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}}}
	case Unknown:
	}
	// The hint about the port of the endpoint's proxy is independent of the protocol.
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

// keepAlive returns the keep-alive for HTTP/2 connections to other proxies, as in linkerd's
// chart. Without it, requests to a proxy that no longer responds would hang.
func keepAlive() *pb.Http2ClientParams_KeepAlive {
	return &pb.Http2ClientParams_KeepAlive{
		Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(3 * time.Second), WhileIdle: true,
	}
}

// identityMessage returns the TLS identity of ep, or nil for cleartext. If ep has no server name,
// neither does the message, and clients use the identity instead.
func identityMessage(ep Endpoint) *pb.TlsIdentity {
	if ep.Identity == "" {
		return nil
	}
	msg := &pb.TlsIdentity{}
	// A SPIFFE ID is a URI, and linkerd's own identities are DNS names.
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
