// Package ca is a small certificate authority that speaks linkerd's identity API,
// io.linkerd.proxy.identity.Identity: enough to try proxies on one machine.
//
//	root ── vouches for ──▶ issuer ── vouches for ──▶ a proxy's certificate
//	  │                       │                          name, and a day to live
//	  └ trust-anchors.pem     └ issuer.pem, issuer.key
//
// A proxy sends a name, a token, and a certificate signing request. It gets a
// certificate if the request is for exactly that name, the name is of the trust
// domain, and a [Check] finds that the token may have it.
//
// The key of the root is used once, for the issuer, and thrown away.
package ca
