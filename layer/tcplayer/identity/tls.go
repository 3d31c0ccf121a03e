package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// ErrPeerIdentity reports that a peer did not prove the expected identity. The peer
// received no application data.
var ErrPeerIdentity = errors.New("peer not verified")

// Server returns a TLS 1.3 config for servers with this identity. A client may send a certificate
// or none; a sent certificate is verified, see [PeerIdentity]. Handshakes fail while this identity
// holds no valid certificate. Any server name is accepted, because tcplayer.DetectTLS checks it. A
// client may resume a session while its certificate is valid.
//
// alpn lists the accepted protocols. The handshake fails if the client offers only other protocols.
// Without alpn, ALPN is ignored, as in linkerd's proxy.
func (i *Identity) Server(alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.handshakeCertificate() },
		ClientAuth:       tls.VerifyClientCertIfGiven,
		ClientCAs:        i.roots,
		NextProtos:       alpn,
		VerifyConnection: i.verifyClient,
	}
}

// verifyClient verifies a resumed connection of a client as a full handshake does. crypto/tls
// verifies full handshakes itself.
func (i *Identity) verifyClient(s tls.ConnectionState) error {
	if !s.DidResume {
		return nil
	}
	// A server without a valid certificate would fail a full handshake too. A client without one has
	// nothing to verify.
	if _, err := i.handshakeCertificate(); err != nil || len(s.PeerCertificates) == 0 {
		return err
	}
	return i.chains.verify(s.PeerCertificates, i.roots, x509.ExtKeyUsageClientAuth)
}

// Client returns a TLS 1.3 config for connections to a server that must prove the identity peer, a
// DNS-like name or a URI. The client sends serverName as SNI. An empty serverName is replaced by
// peer if that is DNS-like. The client sends this identity's certificate if the server requests it.
//
// If the server does not prove the identity peer, the handshake fails with a [layer.Error]. It
// matches [ErrPeerIdentity] and holds the expected and the actual identity. The handshake also
// fails if the server requests a certificate and this identity holds no valid one.
//
// alpn lists the offered protocols. The config and its clones share one session, which the next
// connection resumes. You may clone the config, but VerifyConnection must stay, because it verifies
// the peer, even on a resumed connection. [PeerIdentity] does not work for these connections.
func (i *Identity) Client(serverName, peer string, alpn ...string) *tls.Config {
	cfg := i.client(serverName, peer, i.handshakeCertificate, alpn)
	cfg.ClientSessionCache = &lastSession{local: i.handshakeCertificate}
	return cfg
}

// Bootstrap is like [Identity.Client], but it also works before this process holds a valid
// certificate. It is for the connection to the CA. Without a valid certificate, the client sends
// none. The server must still prove its identity. Sessions are not resumed.
func (i *Identity) Bootstrap(serverName, peer string, alpn ...string) *tls.Config {
	return i.client(serverName, peer, func() (*tls.Certificate, error) {
		if cert, err := i.handshakeCertificate(); err == nil {
			return cert, nil
		}
		// An empty certificate means that the client sends none.
		return &tls.Certificate{}, nil
	}, alpn)
}

// client returns the config for Client and Bootstrap. local returns the certificate that the client
// sends.
func (i *Identity) client(serverName, peer string, local func() (*tls.Certificate, error), alpn []string) *tls.Config {
	if serverName == "" && caller.IsDNS(peer) {
		serverName = peer
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		ServerName:           serverName,
		NextProtos:           alpn,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return local() },
		// VerifyConnection verifies the chain and the identity instead, because
		// crypto/tls compares serverName and does not support URIs.
		InsecureSkipVerify: true, //nolint:gosec // verified below
		VerifyConnection:   func(s tls.ConnectionState) error { return i.verifyPeer(peer, s.PeerCertificates) },
	}
}

// verifyPeer returns an error unless the certificate at the start of chain is valid and
// proves the identity peer.
func (i *Identity) verifyPeer(peer string, chain []*x509.Certificate) error {
	refused := func(actual string, err error) error {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: fmt.Sprintf("expected %s, seen %s", peer, actual), Err: err}
	}
	// An empty identity must not match a certificate without a name.
	if peer == "" {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: "the expected identity is empty"}
	}
	if len(chain) == 0 {
		return refused("none", errors.New("no certificate"))
	}
	// The names are read first, because an error tells which identity the peer claims.
	names := caller.Names(chain[0].Extensions)
	if err := i.chains.verify(chain, i.roots, x509.ExtKeyUsageServerAuth); err != nil {
		return refused(list(names), err)
	}
	if !containsName(names, peer) {
		return refused(list(names), nil)
	}
	return nil
}

// containsName reports whether names contains name. The comparison of DNS names ignores case. The
// result is false for an empty name.
func containsName(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return equalNames(n, name) })
}

// equalNames reports whether a and b are the same name: URIs exactly, DNS-like names regardless of
// case.
func equalNames(a, b string) bool {
	return a == b || !caller.IsURI(a) && !caller.IsURI(b) && strings.EqualFold(a, b)
}

// list formats names for an error message. It shows at most four of them, because a peer
// chooses their number.
func list(names []string) string {
	const maxShown = 4
	switch rest := len(names) - maxShown; {
	case len(names) == 0:
		return "none"
	case rest > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxShown], ", "), rest)
	}
	return strings.Join(names, ", ")
}

// PeerIdentity returns the name that a client proved on a connection to a server with an
// [Identity.Server] config. It returns false without a client certificate. If the certificate
// contains several names, the result is the first DNS-like name or URI, as in linkerd's proxy. A
// DNS-like name may contain upper-case letters.
//
// The state comes from tcplayer.TLSState, from an http.Request's TLS field, or from the State in
// gRPC's credentials.TLSInfo.
func PeerIdentity(state tls.ConnectionState) (name string, ok bool) {
	name = caller.Client(&state)
	return name, name != ""
}
