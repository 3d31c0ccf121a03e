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

// ErrPeerIdentity says of a peer that it did not prove to be who it should be. Nothing
// was sent to it.
var ErrPeerIdentity = errors.New("peer not verified")

// Server returns how to be a server with this identity: TLS 1.3, the certificate
// of the moment, and clients that may show one of theirs, which must hold then;
// see [PeerIdentity]. While there is no certificate, or it has expired, handshakes fail.
// It answers to any server name: tcplayer.DetectTLS says which are for us, and
// ServerName which one that is.
//
// alpn are the protocols that it agrees to; a client that offers others only is
// turned away. With none, the server takes no notice of what is offered, as
// linkerd's proxy does but on its direct port.
func (i *Identity) Server(alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.present() },
		ClientAuth:             tls.VerifyClientCertIfGiven,
		ClientCAs:              i.roots,
		NextProtos:             alpn,
		SessionTicketsDisabled: true,
	}
}

// Client returns how to connect to a server that answers to serverName and must
// prove to be peer, a DNS-like name or a URI: TLS 1.3, with our certificate, if
// the server asks for one. A serverName of "" stands for peer, if that is
// DNS-like.
//
// The handshake fails with a [layer.Error] that matches [ErrPeerIdentity] and names who
// was expected and who was there, if the server has no certificate for peer
// that holds; and with one that says so if the server asks for ours, and we have
// none, or had.
//
// alpn are the protocols to offer. Copies may be made of the tls.Config, such as
// those that tcplayer.WithTLS and gRPC's credentials make; its VerifyConnection must
// stay, for that is what verifies. [PeerIdentity] knows nothing of the connection.
func (i *Identity) Client(serverName, peer string, alpn ...string) *tls.Config {
	return i.client(serverName, peer, i.present, alpn)
}

// Bootstrap is a [Identity.Client] that goes on without a certificate where we
// have none: for what is asked before there is one, or to get one again after it
// has expired, such as the CA itself. The server proves its name all the same.
func (i *Identity) Bootstrap(serverName, peer string, alpn ...string) *tls.Config {
	return i.client(serverName, peer, func() (*tls.Certificate, error) {
		if cert, err := i.present(); err == nil {
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
		// crypto/tls would compare names with serverName, which is not who is
		// expected, and it knows no URIs. VerifyConnection does all of it.
		InsecureSkipVerify: true, //nolint:gosec // verified below
		VerifyConnection:   func(s tls.ConnectionState) error { return i.verifyPeer(peer, s.PeerCertificates) },
	}
}

// verifyPeer returns why a chain of certificates does not prove to be peer.
func (i *Identity) verifyPeer(peer string, chain []*x509.Certificate) error {
	refused := func(seen string, err error) error {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: fmt.Sprintf("expected %s, seen %s", peer, seen), Err: err}
	}
	if peer == "" {
		return &layer.Error{Layer: "identity", Kind: ErrPeerIdentity, Reason: "it was not said who is expected"}
	}
	if len(chain) == 0 {
		return refused("nobody", errors.New("no certificate"))
	}
	names := caller.Names(chain[0].Extensions)
	if _, err := verify(chain, i.roots, x509.ExtKeyUsageServerAuth); err != nil {
		return refused(list(names), err)
	}
	if !has(names, peer) {
		return refused(list(names), nil)
	}
	return nil
}

// has reports whether name is one of names.
func has(names []string, name string) bool {
	return name != "" && slices.ContainsFunc(names, func(n string) bool { return same(n, name) })
}

func same(a, b string) bool {
	return a == b || !caller.IsURI(a) && !caller.IsURI(b) && strings.EqualFold(a, b)
}

// list is names for people. A stranger chose them, and how many there are.
func list(names []string) string {
	const most = 4
	switch more := len(names) - most; {
	case len(names) == 0:
		return "nobody"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// PeerIdentity returns who the client of a connection to a [Identity.Server] proved to
// be; not ok if it showed no certificate. Of a certificate with several names
// that is the first, DNS-like or URI, in the certificate's own order, as in
// linkerd's proxy; what is neither is passed over. A DNS-like name may come in
// any case.
//
// Give it what tcplayer.TLSState returns of a net.Conn, the TLS of an
// http.Request, or the State of gRPC's credentials.TLSInfo.
func PeerIdentity(state tls.ConnectionState) (name string, ok bool) {
	name = caller.Client(&state)
	return name, name != ""
}
