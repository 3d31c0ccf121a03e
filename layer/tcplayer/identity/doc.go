// Package identity implements mutual TLS between proxies. Each proxy has a name,
// proves it by a certificate of short life, and verifies the name of its peer.
//
//	          Run: token, certificate signing request
//	Identity ────────────────────────────────────────────▶ a CA
//	   │  ▲                                                (io.linkerd.proxy.identity)
//	   │  └──────── certificate, before the last expires ─────┘
//	   │
//	   ├ Server  ─▶ tls.Config  for tcplayer.DetectTLS, a gRPC or an HTTP server
//	   ├ Client  ─▶ tls.Config  for tcplayer.WithTLS, httplayer.WithTLS: verifies one name
//	   └ Ready                  nil after the first certificate
//
// Each handshake uses the current certificate. A new certificate, or the end of an
// old one, does not affect open connections.
//
// # Names
//
// A name is DNS-like, "web.default.serviceaccount.identity.linkerd.cluster.local", or a SPIFFE ID,
// "spiffe://cluster.local/ns/default/sa/web". A certificate that is valid under the trust anchors
// proves each of its subject alternative names. DNS names ignore case, and URIs do not. Wildcards
// and the common name are ignored. The rules are those of linkerd's proxy.
//
// The TLS server name (SNI) selects a server and proves nothing. By default it is the
// name of the identity if that is DNS-like. For a URI it must be set.
//
// # Security
//
// A Client sends no application data before its peer has proved its name by TLS 1.3.
//
// A Client resumes its last session, which halves the cost of a handshake. The key exchange remains
// ephemeral. Both sides verify the certificates of the session again: expiration, trust anchors
// and name. A new certificate of the client ends its sessions. If the client reads the ticket of an
// earlier connection after that, it can still resume that session. The server must have a valid
// certificate.
//
// A Server accepts clients without a certificate, as linkerd's proxy does. The application decides
// about them by [PeerIdentity]. A client with an invalid certificate is rejected.
package identity
