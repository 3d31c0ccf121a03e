package match

import (
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"

	"github.com/gotower/gotower/internal/wire"
)

// Source matches requests of clients with an address in network. An IPv4 network contains
// no IPv6 address, and an IPv6 network contains no IPv4 address.
func Source(network netip.Prefix) *pb.ObserveRequest_Match { return source(netmask(network)) }

// SourcePorts matches requests of clients with a port from lo to hi, both included.
func SourcePorts(lo, hi uint16) *pb.ObserveRequest_Match { return source(ports(lo, hi)) }

// Destination matches requests to endpoints with an address in network. See [Source] for
// IPv4 and IPv6.
func Destination(network netip.Prefix) *pb.ObserveRequest_Match { return destination(netmask(network)) }

// DestinationPorts matches requests to endpoints with a port from lo to hi, both included.
func DestinationPorts(lo, hi uint16) *pb.ObserveRequest_Match { return destination(ports(lo, hi)) }

func source(m *pb.ObserveRequest_Match_Tcp) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Source{Source: m}}
}

func destination(m *pb.ObserveRequest_Match_Tcp) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Destination{Destination: m}}
}

// netmask returns a condition on an address: it must be in network.
func netmask(network netip.Prefix) *pb.ObserveRequest_Match_Tcp {
	m := &pb.ObserveRequest_Match_Tcp_Netmask{Mask: uint32(max(network.Bits(), 0))}
	if network.Addr().IsValid() {
		m.Ip = wire.FromIP(network.Addr())
	}
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Netmask_{Netmask: m}}
}

func ports(lo, hi uint16) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Ports{
		Ports: &pb.ObserveRequest_Match_Tcp_PortRange{Min: uint32(lo), Max: uint32(hi)},
	}}
}
