package wire

import (
	"encoding/binary"
	"net/netip"
)

// segment is a TCP segment with its addresses.
type segment struct {
	from, to netip.AddrPort
	seq      uint32 // sequence number of the first byte in data
	syn      bool
	data     []byte
}

// Constants in the headers of Ethernet, IP and TCP.
const (
	etherHead = 14
	typeIPv4  = 0x0800
	typeIPv6  = 0x86dd
	protoTCP  = 6
	flagSYN   = 2
)

// tcp returns the TCP segment in an Ethernet frame. ok is false for other frames. IP fragments
// and IPv6 extension headers are not supported, because the pods' network does not use them.
func tcp(frame []byte) (s segment, ok bool) {
	if len(frame) < etherHead {
		return s, false
	}
	var src, dst netip.Addr
	var packet []byte
	// The type of the packet follows the two Ethernet addresses.
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeIPv4:
		src, dst, packet = ipv4(frame[etherHead:])
	case typeIPv6:
		src, dst, packet = ipv6(frame[etherHead:])
	}
	// Without options, a TCP header has 20 bytes.
	if len(packet) < 20 {
		return s, false
	}
	// The length of the header is counted in words of 4 bytes.
	head := int(packet[12]>>4) * 4
	if head < 20 || head > len(packet) {
		return s, false
	}
	return segment{
		from: netip.AddrPortFrom(src, binary.BigEndian.Uint16(packet)),
		to:   netip.AddrPortFrom(dst, binary.BigEndian.Uint16(packet[2:])),
		seq:  binary.BigEndian.Uint32(packet[4:]), syn: packet[13]&flagSYN != 0, data: packet[head:],
	}, true
}

// ipv4 returns an IPv4 packet's addresses and TCP segment, without the frame's padding. inside is
// nil if the packet is invalid.
func ipv4(p []byte) (src, dst netip.Addr, inside []byte) {
	if len(p) < 20 || p[9] != protoTCP {
		return src, dst, nil
	}
	// The length of the header is counted in words of 4 bytes.
	head := int(p[0]&15) * 4
	// A short frame is padded, so the packet's own length counts.
	total := int(binary.BigEndian.Uint16(p[2:]))
	if head < 20 || total < head || total > len(p) {
		return src, dst, nil
	}
	return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), p[head:total]
}

// ipv6 returns an IPv6 packet's addresses and TCP segment, without the frame's padding. inside is nil if the packet
// is invalid, or if it has extension headers before the segment.
func ipv6(p []byte) (src, dst netip.Addr, inside []byte) {
	if len(p) < 40 || p[6] != protoTCP {
		return src, dst, nil
	}
	// An IPv6 header has 40 bytes.
	total := 40 + int(binary.BigEndian.Uint16(p[4:]))
	if total > len(p) {
		return src, dst, nil
	}
	return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), p[40:total]
}
