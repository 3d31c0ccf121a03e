// Package identity implements mutual TLS between proxies. Each proxy goes by a name, proves it with
// a short-lived certificate, and verifies its peer's name.
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
// Each handshake uses the current certificate. Open connections are not affected when a certificate
// is replaced or expires.
//
// # Names
//
// A name is DNS-like, "web.default.serviceaccount.identity.linkerd.cluster.local", or a SPIFFE ID,
// "spiffe://cluster.local/ns/default/sa/web". A certificate that is valid under the trust anchors
// proves each of its subject alternative names. DNS names ignore case, and URIs do not. Wildcards
// and the common name are ignored. linkerd's proxy applies the same rules.
//
// The TLS server name (SNI) selects a server and proves nothing. By default it is the identity's
// name if that is DNS-like. For a URI it must be set.
//
// # Security
//
// A Client sends no application data before its peer has proved its name with TLS 1.3. It resumes
// its last session, which halves the cost of a handshake.
//
// The key exchange remains ephemeral. Both sides verify the session's certificates again:
// expiration, trust anchors and name. When the client gets a new certificate, its sessions end. If
// the client reads an earlier connection's ticket after that, it can still resume that session. The
// server must hold a valid certificate.
//
// A Server accepts clients without a certificate, as linkerd's proxy does. Your application decides
// about them with [PeerIdentity]. A client with an invalid certificate is rejected.
package identity
