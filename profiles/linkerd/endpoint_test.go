package linkerd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/resolve"
)

func dnsName(name string) *destination.TlsIdentity_DnsLikeIdentity {
	return &destination.TlsIdentity_DnsLikeIdentity{Name: name}
}

func asDNS(name string, serverName *destination.TlsIdentity_DnsLikeIdentity) *destination.TlsIdentity {
	return &destination.TlsIdentity{
		Strategy:   &destination.TlsIdentity_DnsLikeIdentity_{DnsLikeIdentity: dnsName(name)},
		ServerName: serverName,
	}
}

func asURI(uri string, serverName *destination.TlsIdentity_DnsLikeIdentity) *destination.TlsIdentity {
	return &destination.TlsIdentity{
		Strategy:   &destination.TlsIdentity_UriLikeIdentity_{UriLikeIdentity: &destination.TlsIdentity_UriLikeIdentity{Uri: uri}},
		ServerName: serverName,
	}
}

// TLS of an endpoint needs a server name and an identity.
func TestEndpointIdentity(t *testing.T) {
	const uri = "spiffe://root/ns/web"
	for what, tt := range map[string]struct {
		in   *destination.TlsIdentity
		want [2]string // server name and identity
	}{
		"none":                        {nil, [2]string{}},
		"no strategy":                 {&destination.TlsIdentity{ServerName: dnsName("sni")}, [2]string{}},
		"name":                        {asDNS("web.ns", nil), [2]string{"web.ns", "web.ns"}},
		"name with a server name":     {asDNS("web.ns", dnsName("sni")), [2]string{"sni", "web.ns"}},
		"empty name":                  {asDNS("", dnsName("sni")), [2]string{}},
		"URI without a server name":   {asURI(uri, nil), [2]string{}},
		"URI":                         {asURI(uri, dnsName("sni")), [2]string{"sni", uri}},
		"empty URI":                   {asURI("", dnsName("sni")), [2]string{}},
		"a bad name is not cleartext": {asDNS("no name!", nil), [2]string{"no name!", "no name!"}},
	} {
		var dropped []error
		e := convertEndpoint(&destination.WeightedAddr{Addr: ipv4(0x0a000001, 80), TlsIdentity: tt.in}, func(err error) {
			dropped = append(dropped, err)
		})
		assert.Equal(t, tt.in != nil && tt.want[1] == "", len(dropped) == 1, "an identity that comes to cleartext: %v", dropped)
		assert.Equal(t, tt.want, [2]string{e.ServerName, e.Identity}, what)
		require.NoError(t, e.Validate())
	}
}

// Unusable parts of an endpoint are left out.
func TestEndpointHints(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:80")
	transport := func(port uint32) *destination.ProtocolHint {
		return &destination.ProtocolHint{
			Protocol:        &destination.ProtocolHint_Opaque_{Opaque: &destination.ProtocolHint_Opaque{}},
			OpaqueTransport: &destination.ProtocolHint_OpaqueTransport{InboundPort: port},
		}
	}
	for what, tt := range map[string]struct {
		in   *destination.WeightedAddr
		want resolve.Endpoint
	}{
		"nothing":           {&destination.WeightedAddr{}, resolve.Endpoint{}},
		"an empty hint":     {&destination.WeightedAddr{ProtocolHint: &destination.ProtocolHint{}}, resolve.Endpoint{}},
		"opaque":            {&destination.WeightedAddr{ProtocolHint: transport(1)}, resolve.Endpoint{ID: resolve.ID{Protocol: resolve.Opaque, OpaquePort: 1}}},
		"the highest port":  {&destination.WeightedAddr{ProtocolHint: transport(65534)}, resolve.Endpoint{ID: resolve.ID{Protocol: resolve.Opaque, OpaquePort: 65534}}},
		"an invalid port":   {&destination.WeightedAddr{ProtocolHint: transport(65535)}, resolve.Endpoint{ID: resolve.ID{Protocol: resolve.Opaque}}},
		"weight and labels": {&destination.WeightedAddr{Weight: 7, MetricLabels: map[string]string{"pod": "a"}}, resolve.Endpoint{Weight: 7, Labels: map[string]string{"pod": "a"}}},
		"keep-alive": {
			&destination.WeightedAddr{Http2: &destination.Http2ClientParams{KeepAlive: &destination.Http2ClientParams_KeepAlive{
				Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(3 * time.Second),
			}}},
			resolve.Endpoint{ID: resolve.ID{PingInterval: 10 * time.Second, PingTimeout: 3 * time.Second}},
		},
		"an authority":     {authorityOverride("[::1]:80"), resolve.Endpoint{ID: resolve.ID{Authority: "[::1]:80"}}},
		"not an authority": {authorityOverride("a/b"), resolve.Endpoint{}},
		"nor this":         {authorityOverride("user@a"), resolve.Endpoint{}},
		"nor that":         {authorityOverride(`a"b`), resolve.Endpoint{}},
	} {
		tt.in.Addr, tt.want.Addr = ipv4(0x0a000001, 80), at
		got := convertEndpoint(tt.in, func(err error) { assert.NoError(t, err, what) })
		assert.Equal(t, &tt.want, got, what)
		require.NoError(t, got.Validate(), what)
	}
	for why, addr := range map[string]*net.TcpAddress{
		"endpoint: 10.0.0.1:0 has no port":                                     ipv4(0x0a000001, 1<<16),
		"endpoint: 0.0.0.0:80: the unspecified address cannot be connected to": ipv4(0, 80),
	} {
		var dropped error
		require.Nil(t, convertEndpoint(&destination.WeightedAddr{Addr: addr}, func(err error) { dropped = err }))
		require.EqualError(t, dropped, why)
	}
}

func authorityOverride(authority string) *destination.WeightedAddr {
	return &destination.WeightedAddr{AuthorityOverride: &destination.AuthorityOverride{AuthorityOverride: authority}}
}
