package httplayer

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/caller/callertest"
)

func TestSourceLabels(t *testing.T) {
	proven := func(cert *x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}, PeerCertificates: []*x509.Certificate{cert}}
	}
	name := callertest.Certificate(t, "web.shop", "spiffe://x/web")
	type labels = map[string]string
	for what, tt := range map[string]struct {
		from string
		tls  *tls.ConnectionState
		want labels
	}{
		"by TLS":                       {"10.0.0.1:80", &tls.ConnectionState{}, labels{"tls": "true"}},
		"by TLS, from here":            {"127.0.0.1:80", &tls.ConnectionState{}, labels{"tls": "true"}},
		"a name":                       {"10.0.0.1:80", proven(name), labels{"tls": "true", "client_id": "web.shop"}},
		"a URI before a name":          {"10.0.0.1:80", proven(callertest.Certificate(t, "spiffe://x/web", "web.shop")), labels{"tls": "true", "client_id": "spiffe://x/web"}},
		"a certificate without a name": {"10.0.0.1:80", proven(&x509.Certificate{}), labels{"tls": "true"}},
		"not verified":                 {"10.0.0.1:80", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{name}}, labels{"tls": "true"}},
		"in clear":                     {"10.0.0.1:80", nil, labels{"tls": "no_tls_from_remote"}},
		"in clear, from here":          {"[::1]:80", nil, labels{"tls": "loopback"}},
		"our own":                      {"", nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			require.Equal(t, tt.want, Accessor{}.SourceLabels(&http.Request{RemoteAddr: tt.from, TLS: tt.tls}))
		})
	}
}
