package linkerd

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/resolve"
)

func ignore(error) {}

// tcp is the other direction of wire.Addr, written without looking at it: bytes
// are put together one by one.
func tcp(a netip.AddrPort) *net.TcpAddress {
	out := &net.TcpAddress{Ip: &net.IPAddress{}, Port: uint32(a.Port())}
	if a.Addr().Is4() {
		b := a.Addr().As4()
		out.Ip.Ip = &net.IPAddress_Ipv4{Ipv4: uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])}
		return out
	}
	v6 := &net.IPv6{}
	for i, b := range a.Addr().As16() {
		if i < 8 {
			v6.First = v6.GetFirst()<<8 | uint64(b)
		} else {
			v6.Last = v6.GetLast()<<8 | uint64(b)
		}
	}
	out.Ip.Ip = &net.IPAddress_Ipv6{Ipv6: v6}
	return out
}

func dns(name string) *destination.TlsIdentity_DnsLikeIdentity {
	return &destination.TlsIdentity_DnsLikeIdentity{Name: name}
}

func dnsIdentity(name string) *destination.TlsIdentity {
	return &destination.TlsIdentity{
		Strategy: &destination.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: dns(name)},
	}
}

func uriIdentity(uri string) *destination.TlsIdentity {
	return &destination.TlsIdentity{
		Strategy: &destination.TlsIdentity_UriLikeIdentity_{
			UriLikeIdentity: &destination.TlsIdentity_UriLikeIdentity{Uri: uri},
		},
	}
}

func TestEndpointAddress(t *testing.T) {
	for want, in := range map[string]*net.TcpAddress{
		"1.2.3.4:80":        {Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: 0x01020304}}, Port: 80},
		"255.0.0.1:65535":   {Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: 0xff000001}}, Port: 65535},
		"1.2.3.4:4464":      {Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: 0x01020304}}, Port: 70000}, // the lower 16 bits
		"[2001:db8::2a]:80": {Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv6{Ipv6: &net.IPv6{First: 0x20010db800000000, Last: 0x2a}}}, Port: 80},
		"[::1]:1":           {Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv6{Ipv6: &net.IPv6{Last: 1}}}, Port: 1},
		"10.0.0.1:80":       tcp(netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")),
	} {
		got, ok := endpoint(&destination.WeightedAddr{Addr: in}, nil, ignore)
		require.True(t, ok, want)
		assert.Equal(t, resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(want)}}, got)
	}
	for why, in := range map[string]*destination.WeightedAddr{
		"endpoint: no IP address":                                              nil,
		"endpoint: 10.0.0.1:0 has no port":                                     {Addr: tcp(netip.MustParseAddrPort("10.0.0.1:0")), Weight: 1},
		"endpoint: 0.0.0.0:80: the unspecified address cannot be connected to": {Addr: tcp(netip.MustParseAddrPort("0.0.0.0:80"))},
	} {
		var dropped []error
		_, ok := endpoint(in, nil, func(err error) { dropped = append(dropped, err) })
		assert.False(t, ok, why)
		require.Len(t, dropped, 1)
		assert.EqualError(t, dropped[0], why)
	}
}

func TestEndpointTLS(t *testing.T) {
	const uri = "spiffe://root.linkerd.cluster.local/ns/a"
	named := func(id *destination.TlsIdentity, serverName string) *destination.TlsIdentity {
		id.ServerName = dns(serverName)
		return id
	}
	for name, tt := range map[string]struct {
		in                   *destination.TlsIdentity
		serverName, identity string
	}{
		"none":                         {nil, "", ""},
		"no strategy":                  {&destination.TlsIdentity{}, "", ""},
		"no strategy, but server name": {&destination.TlsIdentity{ServerName: dns("sni")}, "", ""},
		"dns":                          {dnsIdentity("web.ns"), "web.ns", "web.ns"},
		"dns with server name":         {named(dnsIdentity("web.ns"), "sni"), "sni", "web.ns"},
		"dns without a name":           {dnsIdentity(""), "", ""},
		"server name, dns without":     {named(dnsIdentity(""), "sni"), "", ""},
		"uri":                          {uriIdentity(uri), "", ""},
		"uri with server name":         {named(uriIdentity(uri), "sni"), "sni", uri},
		"uri with empty server name":   {named(uriIdentity(uri), ""), "", ""},
		"empty uri":                    {named(uriIdentity(""), "sni"), "", ""},
		"a bad name is not cleartext":  {dnsIdentity("no such name!"), "no such name!", "no such name!"},
	} {
		t.Run(name, func(t *testing.T) {
			var dropped []error
			got, ok := endpoint(&destination.WeightedAddr{
				Addr: tcp(netip.MustParseAddrPort("10.0.0.1:80")), TlsIdentity: tt.in,
			}, nil, func(err error) { dropped = append(dropped, err) })
			require.True(t, ok)
			assert.Equal(t, tt.in != nil && tt.identity == "", len(dropped) == 1, "an identity that comes to cleartext: %v", dropped)
			assert.Equal(t, tt.serverName, got.ServerName)
			assert.Equal(t, tt.identity, got.Identity)
		})
	}
}

func TestEndpointHints(t *testing.T) {
	h2 := &destination.ProtocolHint{Protocol: &destination.ProtocolHint_H2_{H2: &destination.ProtocolHint_H2{}}}
	opaque := &destination.ProtocolHint{Protocol: &destination.ProtocolHint_Opaque_{Opaque: &destination.ProtocolHint_Opaque{}}}
	transport := func(port uint32) *destination.ProtocolHint {
		return &destination.ProtocolHint{OpaqueTransport: &destination.ProtocolHint_OpaqueTransport{InboundPort: port}}
	}
	both := transport(4143)
	both.Protocol = h2.GetProtocol()
	for name, tt := range map[string]struct {
		in       *destination.ProtocolHint
		protocol resolve.Protocol
		port     uint16
	}{
		"none":              {nil, resolve.Unknown, 0},
		"empty":             {&destination.ProtocolHint{}, resolve.Unknown, 0},
		"h2":                {h2, resolve.H2, 0},
		"opaque":            {opaque, resolve.Opaque, 0},
		"h2 and transport":  {both, resolve.H2, 4143},
		"transport":         {transport(4143), resolve.Unknown, 4143},
		"transport, lowest": {transport(1), resolve.Unknown, 1},
		"transport, most":   {transport(65534), resolve.Unknown, 65534},
		"transport 0":       {transport(0), resolve.Unknown, 0},
		"transport 65535":   {transport(65535), resolve.Unknown, 0},
		"transport 65537":   {transport(65537), resolve.Unknown, 0}, // not port 1
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := endpoint(&destination.WeightedAddr{
				Addr: tcp(netip.MustParseAddrPort("10.0.0.1:80")), ProtocolHint: tt.in,
			}, nil, ignore)
			require.True(t, ok)
			assert.Equal(t, tt.protocol, got.Protocol)
			assert.Equal(t, tt.port, got.OpaquePort)
		})
	}
}

func TestEndpointKeepAlive(t *testing.T) {
	keepAlive := func(interval, timeout *durationpb.Duration) *destination.Http2ClientParams {
		return &destination.Http2ClientParams{KeepAlive: &destination.Http2ClientParams_KeepAlive{Interval: interval, Timeout: timeout}}
	}
	ten, three := durationpb.New(10*time.Second), durationpb.New(3*time.Second)
	for name, tt := range map[string]struct {
		in                *destination.Http2ClientParams
		interval, timeout time.Duration
	}{
		"none":        {nil, 0, 0},
		"both":        {keepAlive(ten, three), 10 * time.Second, 3 * time.Second},
		"no timeout":  {keepAlive(ten, nil), 0, 0},
		"no interval": {keepAlive(nil, three), 0, 0},
		"negative":    {keepAlive(durationpb.New(-1), three), 0, 0},
		"invalid":     {keepAlive(&durationpb.Duration{Nanos: -1, Seconds: 1}, three), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := endpoint(&destination.WeightedAddr{Addr: tcp(addr1), Http2: tt.in}, nil, ignore)
			require.True(t, ok)
			assert.Equal(t, tt.interval, got.PingInterval)
			assert.Equal(t, tt.timeout, got.PingTimeout)
			assert.False(t, got.PingWhileIdle)
		})
	}
}

func TestEndpointKeepAliveWhileIdle(t *testing.T) {
	got, ok := endpoint(&destination.WeightedAddr{Addr: tcp(addr1), Http2: &destination.Http2ClientParams{
		KeepAlive: &destination.Http2ClientParams_KeepAlive{
			Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), WhileIdle: true,
		},
	}}, nil, ignore)
	require.True(t, ok)
	assert.True(t, got.PingWhileIdle)
}

func TestEndpointAuthority(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"web.default.svc":        "web.default.svc",
		"web.default.svc:8080":   "web.default.svc:8080",
		"10.0.0.1:80":            "10.0.0.1:80",
		"[fd00::1]:80":           "[fd00::1]:80",
		"user@web":               "",
		"web/path":               "",
		"web?q":                  "",
		`a"b`:                    "",
		"web#f":                  "",
		"a b":                    "",
		"web\r\nx-injected: yes": "",
		"web:http":               "",
		"[fd00::1":               "",
	} {
		got, ok := endpoint(&destination.WeightedAddr{
			Addr:              tcp(netip.MustParseAddrPort("10.0.0.1:80")),
			AuthorityOverride: &destination.AuthorityOverride{AuthorityOverride: in},
		}, nil, ignore)
		require.True(t, ok)
		assert.Equal(t, want, got.Authority, "%q", in)
	}
}

func TestEndpointLabelsAndWeight(t *testing.T) {
	set := map[string]string{"namespace": "ns", "zone": "set"}
	own := map[string]string{"pod": "a", "zone": "own"}
	for name, tt := range map[string]struct{ set, own, want map[string]string }{
		"none":     {nil, nil, nil},
		"set only": {set, nil, set},
		"own only": {nil, own, own},
		"overlaid": {set, own, map[string]string{"namespace": "ns", "pod": "a", "zone": "own"}},
	} {
		got, ok := endpoint(&destination.WeightedAddr{
			Addr: tcp(netip.MustParseAddrPort("10.0.0.1:80")), MetricLabels: tt.own, Weight: 10_000,
		}, tt.set, ignore)
		require.True(t, ok)
		assert.Equal(t, tt.want, got.Labels, name)
		assert.EqualValues(t, 10_000, got.Weight)
	}
	assert.Equal(t, map[string]string{"namespace": "ns", "zone": "set"}, set, "the set's labels are not written to")
}

func FuzzWeightedAddr(f *testing.F) {
	for _, a := range []*destination.WeightedAddr{
		{},
		{Addr: tcp(netip.MustParseAddrPort("10.0.0.1:80")), Weight: 1, TlsIdentity: dnsIdentity("web")},
		{Addr: tcp(netip.MustParseAddrPort("[fd00::1]:80")), MetricLabels: map[string]string{"a": "b"}},
		{
			Addr: tcp(netip.MustParseAddrPort("1.2.3.4:5")), TlsIdentity: uriIdentity("spiffe://a"),
			AuthorityOverride: &destination.AuthorityOverride{AuthorityOverride: "web:80"},
			ProtocolHint:      &destination.ProtocolHint{OpaqueTransport: &destination.ProtocolHint_OpaqueTransport{InboundPort: 65535}},
		},
	} {
		data, err := proto.Marshal(a)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a := &destination.WeightedAddr{}
		if proto.Unmarshal(data, a) != nil {
			return
		}
		e, ok := endpoint(a, map[string]string{"set": "yes"}, ignore)
		if a.GetAddr().GetIp().GetIp() == nil {
			require.False(t, ok)
		}
		if !ok {
			require.Equal(t, resolve.Endpoint{}, e)
			return
		}
		require.True(t, e.Addr.IsValid())
		require.Equal(t, e.ServerName == "", e.Identity == "")
		require.Less(t, e.OpaquePort, uint16(math.MaxUint16))
		require.NotContains(t, e.Authority, "\n")
		require.Contains(t, e.Labels, "set")
		require.GreaterOrEqual(t, len(e.Labels), len(a.GetMetricLabels()))
		again, _ := endpoint(a, map[string]string{"set": "yes"}, ignore)
		require.True(t, e.Equal(again))
		back, err := wire.Addr(tcp(e.Addr))
		require.NoError(t, err)
		require.Equal(t, e.Addr, back)
	})
}
