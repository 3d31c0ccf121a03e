// Package identity is mutual TLS between proxies: each has a name, proves it by
// a certificate that lives for a day or less, and wants the name of the other
// proved before it says anything.
//
//	          Certify: token, certificate signing request
//	Identity ────────────────────────────────────────────▶ a CA
//	   │  ▲                                                (io.linkerd.proxy.identity)
//	   │  └──────── certificate, before the last expires ─────┘
//	   │
//	   ├ Server  ─▶ tls.Config  for tcplayer.DetectTLS, a gRPC or an HTTP server
//	   ├ Client  ─▶ tls.Config  for tcplayer.WithTLS, httplayer.WithTLS: wants one name proved
//	   └ Ready                  nil once there was a certificate
//
// A tls.Config is made once: each handshake takes the certificate of that
// moment. Connections that are open are left alone by a new one, and by the end
// of the old one.
//
// # Names
//
// A name is DNS-like, "web.default.serviceaccount.identity.linkerd.cluster.local",
// or a SPIFFE ID, "spiffe://cluster.local/ns/default/sa/web". It is proved by a
// certificate, signed by who the trust anchors say may, that has the name among
// its subject alternative names: a DNS name in any case, a URI letter by letter.
// The one kind does not stand for the other, a wildcard stands for nothing, the
// common name is not looked at, and where there are several names each of them
// is proved. All of that is as in linkerd's proxy.
//
// The name that TLS asks for (SNI) only says which server is meant. It is that
// of the identity where that is DNS-like, and must be given to go with a URI.
//
// # What is not done in clear
//
// A Client says nothing before its peer has proved its name by TLS 1.3: a peer
// that answers in clear, with an older TLS, an expired certificate, another name,
// or the name by another authority, sees a ClientHello and no byte of the
// request. There is no resumption, which would carry yesterday's proof into
// today.
//
// A Server takes clients that have no certificate, as linkerd's proxy does:
// whether they may do something is for whoever serves them to say, by [PeerIdentity]. One
// that shows a certificate which does not hold is turned away.
package identity
