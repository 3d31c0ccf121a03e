package match

import (
	"encoding/binary"
	"net/netip"

	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
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

func netmask(network netip.Prefix) *pb.ObserveRequest_Match_Tcp {
	m := &pb.ObserveRequest_Match_Tcp_Netmask{Mask: uint32(max(network.Bits(), 0))}
	switch ip := network.Addr(); {
	case ip.Is4():
		b := ip.As4()
		m.Ip = &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}}
	case ip.Is6():
		b := ip.As16()
		m.Ip = &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{
			First: binary.BigEndian.Uint64(b[:8]),
			Last:  binary.BigEndian.Uint64(b[8:]),
		}}}
	}
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Netmask_{Netmask: m}}
}

func ports(lo, hi uint16) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Ports{
		Ports: &pb.ObserveRequest_Match_Tcp_PortRange{Min: uint32(lo), Max: uint32(hi)},
	}}
}
