package caller_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// The kinds of names that a certificate can have (RFC 5280, 4.2.1.6).
const (
	mail = 1
	dns  = 2
	uri  = 6
	ip   = 7
)

// name is one of a certificate.
type name struct {
	kind int
	text string
}

// alternatives are names as a certificate has them.
func alternatives(t require.TestingT, names ...name) []byte {
	var all []asn1.RawValue
	for _, n := range names {
		all = append(all, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: n.kind, Bytes: []byte(n.text)})
	}
	der, err := asn1.Marshal(all)
	require.NoError(t, err)
	return der
}

// proven is the connection of a client with these names in its certificate.
func proven(der []byte) *tls.ConnectionState {
	san := pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Extensions: []pkix.Extension{{}, san}}}}}
}

// agreed returns the identity of a client, and requires that both parsers agree on it.
func agreed(t require.TestingT, state *tls.ConnectionState) string {
	labels := caller.Labels(netip.AddrPort{}, state)
	id, ok := identity.PeerIdentity(*state)
	require.Equal(t, id, labels["client_id"])
	_, labelled := labels["client_id"]
	require.Equal(t, ok, labelled)
	require.Equal(t, "true", labels["tls"])
	return id
}

func TestClientFirstName(t *testing.T) {
	const spiffe = "spiffe://cluster.local/ns/shop/sa/web"
	for what, tt := range map[string]struct {
		names []name
		want  string
	}{
		"a name":             {[]name{{dns, "web.shop"}, {dns, "other"}}, "web.shop"},
		"a name before URIs": {[]name{{dns, "web.shop"}, {uri, spiffe}}, "web.shop"},
		"a URI before names": {[]name{{uri, spiffe}, {dns, "web.shop"}}, spiffe},
		"others before":      {[]name{{mail, "a@b"}, {ip, "\x0a\x00\x00\x01"}, {dns, "*.shop"}, {uri, "web"}, {dns, "10.0.0.1"}, {dns, "web.shop"}}, "web.shop"},
		"others only":        {[]name{{mail, "web.shop"}}, ""},
		"none":               {nil, ""},
		"too long":           {[]name{{dns, strings.Repeat("a.", 127)}, {dns, strings.Repeat("a", 64)}}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, tt.want, agreed(t, proven(alternatives(t, tt.names...))))
		})
	}
	require.Empty(t, agreed(t, proven(append(alternatives(t, name{dns, "web.shop"})[:2], "\x82\x09web"...))), "what cannot be read")
	require.Empty(t, agreed(t, &tls.ConnectionState{}), "no client")

	// crypto/x509 ignores a name that is marked as constructed, and does not apply the
	// name constraints of the CA to it.
	parts, err := asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: dns, IsCompound: true, Bytes: []byte("web.shop")},
		{Class: asn1.ClassContextSpecific, Tag: uri, IsCompound: true, Bytes: []byte("spiffe://x/y")},
	})
	require.NoError(t, err)
	require.Empty(t, agreed(t, proven(parts)), "in parts")
}

// A certificate that crypto/x509 made and read.
func TestClientRealCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	id, err := url.Parse("spiffe://cluster.local/ns/shop/sa/web")
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"web.shop"}, URIs: []*url.URL{id}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	require.Equal(t, "web.shop", agreed(t, &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}))
}

func FuzzLabels(f *testing.F) {
	f.Add(alternatives(f, name{dns, "web.shop"}, name{uri, "spiffe://x/y"}))
	f.Add(alternatives(f, name{uri, "spiffe://x/y"}, name{mail, "a@b"}))
	f.Add([]byte{0x30, 0x80, 0, 0})
	f.Fuzz(func(t *testing.T, der []byte) { agreed(t, proven(der)) })
}

func TestLabelsCleartext(t *testing.T) {
	for from, want := range map[string]map[string]string{
		"10.0.0.1:80": {"tls": "no_tls_from_remote"}, "[::1]:80": {"tls": "loopback"}, "127.0.0.2:80": {"tls": "loopback"},
	} {
		require.Equal(t, want, caller.Labels(netip.MustParseAddrPort(from), nil))
	}
	require.Nil(t, caller.Labels(netip.AddrPort{}, nil))
}
