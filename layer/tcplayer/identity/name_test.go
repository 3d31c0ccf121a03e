package identity

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/caller"
)

func TestNames(t *testing.T) {
	for _, name := range []string{
		web, "a", "web.default", "WEB-1.default_x", "1.2.3.4.5", strings.Repeat("a", 63) + ".b",
		spiffe, "spiffe://cluster.local", "spiffe://a.b-c/x/y%20z",
	} {
		require.NoError(t, caller.Check(name), name)
		key, csr, err := Request(name)
		require.NoError(t, err, name)
		c := Config{Name: name, ServerName: "a", Key: key, CSR: csr}
		require.NoError(t, c.checkRequest(), name)
	}
	for name, says := range map[string]string{
		"":                         "the identity is empty",
		"web.default.":             "must be DNS-like",
		"web..default":             "must be DNS-like",
		".web":                     "must be DNS-like",
		"-web.default":             "must be DNS-like",
		"web-.default":             "must be DNS-like",
		"*.default":                "must be DNS-like",
		"web default":              "must be DNS-like",
		"wéb":                      "must be DNS-like",
		"10.0.0.1":                 "must be DNS-like",
		strings.Repeat("a", 64):    "must be DNS-like",
		strings.Repeat("a.", 127):  "must be DNS-like",
		"https://cluster.local/x":  "must begin like spiffe://",
		"spiffe:///x":              "must begin like spiffe://",
		"SPIFFE://cluster.local/x": "must begin like spiffe://",
		"spiffe://Cluster.local/x": "must be in lower case",
		"spiffe://.0/x":            "must be a host name",
		"spiffe://a..b/x":          "must be a host name",
		"spiffe://a./x":            "must be a host name",
		"spiffe://a;b/x":           "must be a host name",
		"spiffe://a/zoé":           "printable ASCII",
		"spiffe://a/b c":           "printable ASCII",
		"spiffe://a:1/x":           "must have only a trust domain and a path",
		"spiffe://u@a/x":           "must have only a trust domain and a path",
		"spiffe://a/x?":            "must have only a trust domain and a path",
		"spiffe://a/x?y":           "must have only a trust domain and a path",
		"spiffe://a/x#y":           "must have only a trust domain and a path",
		"spiffe://a/%zz":           "invalid URL escape",
		"spiffe://a/" + strings.Repeat("a", 2048): "limit 2048",
	} {
		require.ErrorContains(t, caller.Check(name), says, name)
		_, _, err := Request(name)
		require.ErrorContains(t, err, says)
	}
}

const (
	foo = "foo.ns1.serviceaccount.identity.linkerd.cluster.local"
	bar = "bar.ns1.serviceaccount.identity.linkerd.cluster.local"
	id  = "spiffe://some-trust-comain/some-system/some-component"
)

// san is one subject alternative name, of the kind of that number.
func san(kind int, name string) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: kind, Bytes: []byte(name)}
}

func dns(name string) asn1.RawValue  { return san(2, name) }
func uri(name string) asn1.RawValue  { return san(6, name) }
func mail(name string) asn1.RawValue { return san(1, name) }

func extension(t testing.TB, names ...asn1.RawValue) pkix.Extension {
	t.Helper()
	der, err := asn1.Marshal(names)
	require.NoError(t, err)
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}
}

// certified is a certificate with names in an order of our own.
func named(t testing.TB, names ...asn1.RawValue) *x509.Certificate {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	if len(names) > 0 {
		template.ExtraExtensions = []pkix.Extension{extension(t, names...)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// The tests of linkerd's verifier, by their names there.
func TestNamesAsLinkerd(t *testing.T) {
	for name, tt := range map[string]struct {
		names []asn1.RawValue
		match string
		want  bool
	}{
		"cert_with_dns_san_matches_dns_id":                {[]asn1.RawValue{dns(foo)}, foo, true},
		"cert_with_spiffe_san_matches_spiffe_id":          {[]asn1.RawValue{uri(id)}, id, true},
		"cert_with_dns_san_does_not_match_dns_id":         {[]asn1.RawValue{dns(foo)}, bar, false},
		"cert_with_dns_san_does_not_match_spiffe_id":      {[]asn1.RawValue{dns(bar)}, id, false},
		"cert_with_no_san_does_not_verify_for_dns_id":     {nil, bar, false},
		"cert_with_no_san_does_not_verify_for_spiffe_id":  {nil, id, false},
		"cert_with_multiple_sans_one_matches_dns_id":      {[]asn1.RawValue{dns(bar), dns(foo), uri(id)}, foo, true},
		"cert_with_dns_multiple_sans_one_matches_spiffe":  {[]asn1.RawValue{dns(bar), dns(foo), uri(id)}, id, true},
		"cert_with_dns_multiple_sans_none_matches_dns_id": {[]asn1.RawValue{dns(bar), dns(foo), uri(id)}, "nar", false},
		"cert_with_multiple_sans_none_matches_spiffe_id":  {[]asn1.RawValue{dns(bar), dns(foo)}, id, false},
		"in another case, DNS-like":                       {[]asn1.RawValue{dns(strings.ToUpper(foo))}, foo, true},
		"in another case, URI":                            {[]asn1.RawValue{uri(id)}, strings.Replace(id, "component", "COMPONENT", 1), false},
		"a URI as a DNS name":                             {[]asn1.RawValue{dns(id)}, id, false},
		"a DNS name as a URI":                             {[]asn1.RawValue{uri("foo")}, "foo", false},
		"no name":                                         {[]asn1.RawValue{dns(foo)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			der := extension(t, tt.names...)
			assert.Equal(t, tt.want, containsName(caller.Names([]pkix.Extension{der}), tt.match))
		})
	}
	for name, tt := range map[string]struct {
		names []asn1.RawValue
		want  string
	}{
		"can_extract_spiffe_client_identity_one_san":        {[]asn1.RawValue{uri(id)}, id},
		"can_extract_spiffe_client_identity_many_sans":      {[]asn1.RawValue{uri(id), dns(foo), dns(bar)}, id},
		"can_extract_dns_client_identity_one_san":           {[]asn1.RawValue{dns(foo)}, foo},
		"can_extract_dns_client_identity_many_sans":         {[]asn1.RawValue{dns(foo), dns(bar), uri(id)}, foo},
		"extracts_dns_client_id_when_others_not_uri_or_dns": {[]asn1.RawValue{mail("a@b"), dns(foo), mail("b@c")}, foo},
		"extracts_spiffe_client_id_when_others_not":         {[]asn1.RawValue{mail("a@b"), uri(id), mail("b@c")}, id},
		"skips_dns_san_with_trailing_dot":                   {[]asn1.RawValue{dns(foo + ".")}, ""},
		"no names":                                          {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cert := named(t, tt.names...)
			got, ok := PeerIdentity(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}})
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.want != "", ok)
			_, ok = PeerIdentity(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}})
			assert.False(t, ok, "an unverified certificate proves nothing")
		})
	}
}

func TestList(t *testing.T) {
	assert.Equal(t, "none", list(nil))
	assert.Equal(t, "a, b", list([]string{"a", "b"}))
	assert.Equal(t, "a, b, c, d and 2 more", list([]string{"a", "b", "c", "d", "e", "f"}))
}

func FuzzAlternatives(f *testing.F) {
	f.Add(extension(f, dns(foo), uri(id), mail("a@b")).Value)
	f.Add(extension(f).Value)
	f.Add([]byte{0x30, 0x80, 0, 0})
	f.Fuzz(func(t *testing.T, der []byte) {
		for _, name := range caller.Names([]pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}}) {
			if !caller.IsDNS(name) && !caller.IsURI(name) {
				t.Errorf("%q is no name", name)
			}
			if !containsName([]string{name}, name) {
				t.Errorf("%q is not itself", name)
			}
		}
	})
}

// crypto/x509 finds the same names in a certificate.
func FuzzNamesAsX509(f *testing.F) {
	f.Add(foo, bar, id)
	f.Add(foo, bar, "spiffe://.0")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if !caller.IsDNS(a) || !caller.IsDNS(b) || caller.Check(c) != nil || !caller.IsURI(c) {
			t.Skip()
		}
		cert := named(t, dns(a), uri(c), dns(b))
		if cert.DNSNames[0] != a || cert.DNSNames[1] != b || cert.URIs[0].String() != c {
			t.Skip() // not a canonical encoding
		}
		assert.Equal(t, []string{a, c, b}, caller.Names(cert.Extensions))
	})
}
