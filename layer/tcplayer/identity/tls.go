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

// Server returns a TLS 1.3 config for servers with this identity. A client may send a
// certificate or none; a sent certificate is verified, see [PeerIdentity]. Handshakes
// fail while this identity has no valid certificate. Any server name is accepted, because
// tcplayer.DetectTLS checks it. A client may resume a session while its certificate is valid.
//
// The arguments alpn are the accepted protocols. The handshake fails if the client offers
// only other protocols. Without alpn, ALPN is ignored, as in linkerd's proxy.
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
	if _, err := i.handshakeCertificate(); err != nil || len(s.PeerCertificates) == 0 {
		return err
	}
	return i.chains.verify(s.PeerCertificates, i.roots, x509.ExtKeyUsageClientAuth)
}

// Client returns a TLS 1.3 config for connections to a server that must prove the identity peer, a
// DNS-like name or a URI. The client sends serverName as SNI. An empty serverName is replaced by
// the argument peer if that is DNS-like. The client sends the certificate of this identity if the
// server requests it.
//
// If the server does not prove the identity peer, the handshake fails with a [layer.Error]. It
// matches [ErrPeerIdentity] and has the expected and the actual identity. The handshake also fails
// if the server requests a certificate and this identity has no valid one.
//
// The arguments alpn are the offered protocols. The config and its clones share one session, which
// the next connection resumes. The config may be cloned, but VerifyConnection must stay, because
// it verifies the peer, also of a resumed connection. [PeerIdentity] does not work for these
// connections.
func (i *Identity) Client(serverName, peer string, alpn ...string) *tls.Config {
	cfg := i.client(serverName, peer, i.handshakeCertificate, alpn)
	cfg.ClientSessionCache = &lastSession{own: i.handshakeCertificate}
	return cfg
}

// Bootstrap is like [Identity.Client], but it also works before this process has a valid
// certificate. It is for the connection to the CA. Without a valid certificate, the
// client sends none. The server must still prove its identity. Sessions are not resumed.
func (i *Identity) Bootstrap(serverName, peer string, alpn ...string) *tls.Config {
	return i.client(serverName, peer, func() (*tls.Certificate, error) {
		if cert, err := i.handshakeCertificate(); err == nil {
			return cert, nil
		}
		return &tls.Certificate{}, nil
	}, alpn)
}

func (i *Identity) client(serverName, peer string, own func() (*tls.Certificate, error), alpn []string) *tls.Config {
	if serverName == "" && caller.IsDNS(peer) {
		serverName = peer
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		ServerName:           serverName,
		NextProtos:           alpn,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// VerifyConnection verifies the chain and the identity instead, because
		// crypto/tls compares serverName and does not support URIs.
		InsecureSkipVerify: true, //nolint:gosec // verified below
		VerifyConnection:   func(s tls.ConnectionState) error { return i.verifyPeer(peer, s.PeerCertificates) },
	}
}

// verifyPeer returns an error unless the certificate at the start of chain is valid and
// proves the identity peer.
func (i *Identity) verifyPeer(peer string, chain []*x509.Certificate) error {
	refused := func(seen string, err error) error {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: fmt.Sprintf("expected %s, seen %s", peer, seen), Err: err}
	}
	if peer == "" {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: "the expected identity is empty"}
	}
	if len(chain) == 0 {
		return refused("none", errors.New("no certificate"))
	}
	names := caller.Names(chain[0].Extensions)
	if err := i.chains.verify(chain, i.roots, x509.ExtKeyUsageServerAuth); err != nil {
		return refused(list(names), err)
	}
	if !has(names, peer) {
		return refused(list(names), nil)
	}
	return nil
}

// has reports whether names contains name. The comparison of DNS names ignores case. The
// result is false for an empty name.
func has(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return same(n, name) })
}

func same(a, b string) bool {
	return a == b || !caller.IsURI(a) && !caller.IsURI(b) && strings.EqualFold(a, b)
}

// list formats names for an error message. It shows at most four of them, because a peer
// chooses their number.
func list(names []string) string {
	const most = 4
	switch more := len(names) - most; {
	case len(names) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// PeerIdentity returns the name that a client proved on a connection to a server with an
// [Identity.Server] config. It returns false without a client certificate. If the
// certificate has several names, the result is the first DNS-like name or URI, as in
// linkerd's proxy. A DNS-like name can have upper-case letters.
//
// The state comes from tcplayer.TLSState, from the TLS field of an http.Request, or from
// the State of gRPC's credentials.TLSInfo.
func PeerIdentity(state tls.ConnectionState) (name string, ok bool) {
	name = caller.Client(&state)
	return name, name != ""
}
