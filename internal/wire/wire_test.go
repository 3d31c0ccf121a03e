package wire_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/wire"
)

func ipv4(ip, port uint32) *net.TcpAddress {
	return &net.TcpAddress{Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: ip}}, Port: port}
}

func ipv6(first, last uint64, port uint32) *net.TcpAddress {
	return &net.TcpAddress{Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv6{Ipv6: &net.IPv6{First: first, Last: last}}}, Port: port}
}

func TestAddr(t *testing.T) {
	for want, in := range map[string]*net.TcpAddress{
		"1.2.3.4:80":       ipv4(0x01020304, 80),
		"1.2.3.4:1":        ipv4(0x01020304, 65537), // the lower 16 bits
		"[2001:db8::1]:80": ipv6(0x20010db8<<32, 1, 80),
		"[::1]:1":          ipv6(0, 1, 1),
		"10.0.0.1:80":      ipv6(0, 0xffff_0a00_0001, 80),
	} {
		got, err := wire.Addr(in)
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddrPort(want), got)
	}
	for want, bad := range map[string][]*net.TcpAddress{
		"no IP address":                              {nil, {}, {Port: 80}, {Ip: &net.IPAddress{}}},
		"127.0.0.1:0 has no port":                    {ipv4(0x7f000001, 0), ipv4(0x7f000001, 65536)},
		"[::1]:0 has no port":                        {ipv6(0, 1, 0)},
		"0.0.0.0:80: the unspecified address cannot": {ipv4(0, 80), ipv6(0, 0xffff_0000_0000, 80)},
		"[::]:80: the unspecified address cannot":    {ipv6(0, 0, 80)},
	} {
		for _, in := range bad {
			got, err := wire.Addr(in)
			require.ErrorContains(t, err, want)
			require.Zero(t, got)
		}
	}
}

// An IPv6 address is two integers, and an IPv4-mapped one becomes IPv4.
func TestTCP(t *testing.T) {
	for from, want := range map[string]*net.TcpAddress{
		"192.168.1.2:65535":         ipv4(0xc0a80102, 65535),
		"[::ffff:192.168.1.2]:80":   ipv4(0xc0a80102, 80),
		"[2001:db8:1:2:3:4:5:6]:80": ipv6(0x20010db800010002, 0x0003000400050006, 80),
	} {
		require.Equal(t, want.String(), wire.TCP(netip.MustParseAddrPort(from)).String())
	}
}

func FuzzAddr(f *testing.F) {
	f.Add(uint32(0x7f000001), uint64(0), uint64(1), uint32(80))
	f.Add(uint32(0xffffffff), uint64(0xfd00<<48), uint64(1<<63), uint32(70000))
	f.Add(uint32(0), uint64(0), uint64(0xffff_0a00_0001), uint32(1))
	f.Fuzz(func(t *testing.T, v4 uint32, first, last uint64, port uint32) {
		got, err := wire.Addr(ipv4(v4, port))
		require.Equal(t, v4 != 0 && uint16(port) != 0, err == nil)
		if err == nil {
			require.True(t, got.Addr().Is4())
			require.Equal(t, v4, binary.BigEndian.Uint32(got.Addr().AsSlice()))
			require.Equal(t, port&0xffff, uint32(got.Port()))
		}
		if got, err = wire.Addr(ipv6(first, last, port)); err == nil {
			require.False(t, got.Addr().Is4In6())
			require.False(t, got.Addr().IsUnspecified())
			b := got.Addr().As16()
			require.Equal(t, [2]uint64{first, last}, [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])})
		}
	})
}

func TestTLS(t *testing.T) {
	const uri = "spiffe://root/ns/web"
	name := func(s string) *destination.TlsIdentity_DnsLikeIdentity {
		return &destination.TlsIdentity_DnsLikeIdentity{Name: s}
	}
	dns := func(s string) *destination.TlsIdentity_DnsLikeIdentity_ {
		return &destination.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: name(s)}
	}
	spiffe := func(s string) *destination.TlsIdentity_UriLikeIdentity_ {
		return &destination.TlsIdentity_UriLikeIdentity_{UriLikeIdentity: &destination.TlsIdentity_UriLikeIdentity{Uri: s}}
	}
	for what, tt := range map[string]struct {
		in   *destination.TlsIdentity
		want [2]string // server name and identity
		why  string
	}{
		"none":                        {},
		"empty":                       {in: &destination.TlsIdentity{}, why: "without a name or of an unknown kind"},
		"a newer kind":                {in: &destination.TlsIdentity{ServerName: name("sni")}, why: "of an unknown kind"},
		"name":                        {in: &destination.TlsIdentity{Strategy: dns("web.ns")}, want: [2]string{"web.ns", "web.ns"}},
		"name and server name":        {in: &destination.TlsIdentity{Strategy: dns("web.ns"), ServerName: name("sni")}, want: [2]string{"sni", "web.ns"}},
		"empty name":                  {in: &destination.TlsIdentity{Strategy: dns(""), ServerName: name("sni")}, why: "without a name"},
		"URI and server name":         {in: &destination.TlsIdentity{Strategy: spiffe(uri), ServerName: name("sni")}, want: [2]string{"sni", uri}},
		"URI":                         {in: &destination.TlsIdentity{Strategy: spiffe(uri)}, why: "without a server name: cleartext"},
		"empty URI":                   {in: &destination.TlsIdentity{Strategy: spiffe(""), ServerName: name("sni")}, why: "without a name"},
		"a bad name is not cleartext": {in: &destination.TlsIdentity{Strategy: dns("no name!")}, want: [2]string{"no name!", "no name!"}},
	} {
		serverName, identity, err := wire.TLS(tt.in)
		require.Equal(t, tt.want, [2]string{serverName, identity}, what)
		if tt.why == "" {
			require.NoError(t, err, what)
		} else {
			require.ErrorContains(t, err, tt.why, what)
		}
	}
}
