package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/trust/trusttest"
)

// An invalid certificate has its own advice, different from that of a wrong name, an
// unknown authority or a cleartext port.
func TestInvalidCertificates(t *testing.T) {
	ca := trusttest.New(t)
	sign := x509.KeyUsageCertSign
	for _, tt := range []struct {
		name string
		cert tls.Certificate
		says string
	}{
		{"for clients", ca.ForClients(t, web), "incompatible key usage"},
		{"below what is no authority", ca.Below(t, &x509.Certificate{}).Issue(t, web), "parent certificate cannot sign"},
		{
			"below one for other names",
			ca.Below(t, &x509.Certificate{IsCA: true, KeyUsage: sign, PermittedDNSDomains: []string{"db.default"}}).Issue(t, web),
			"not permitted by any constraint",
		},
		{
			"too far below",
			ca.Below(t, &x509.Certificate{IsCA: true, KeyUsage: sign, MaxPathLenZero: true}).
				Below(t, &x509.Certificate{IsCA: true, KeyUsage: sign}).Issue(t, web),
			"too many intermediates",
		},
	} {
		addr := serve(t, &tls.Config{Certificates: []tls.Certificate{tt.cert}, MinVersion: tls.VersionTLS13})
		for how, server := range map[string]Server{"an identity": {Identity: web}, "a host": {Name: web}} {
			t.Run(tt.name+", by "+how, func(t *testing.T) {
				c, err := New(Files{Anchors: ca.File}, server)
				require.NoError(t, err)
				var e *Error
				require.ErrorAs(t, probe(t, c, addr), &e)
				require.Contains(t, e.Reason, tt.says)
				require.Equal(t, adviceUnfit, e.Advice)
				require.NotContains(t, e.Reason, "expected "+web)
			})
		}
	}
}

// Other errors of crypto/x509 about a chain.
func TestExplainChains(t *testing.T) {
	for _, tt := range []struct {
		err  error
		says string
	}{
		{x509.SystemRootsError{Err: errors.New("none")}, adviceUnknown},
		{x509.UnknownAuthorityError{}, adviceUnknown},
		{x509.UnhandledCriticalExtension{}, adviceUnfit},
		{errors.New("odd"), adviceUnfit},
	} {
		err := &tls.CertificateVerificationError{Err: tt.err}
		require.Equal(t, tt.says, new(handshake).explain(err).Advice, err)
	}
}
