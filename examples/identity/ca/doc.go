// Package ca is a small certificate authority that speaks linkerd's identity API,
// io.linkerd.proxy.identity.Identity. It is for tests of proxies on one machine.
//
//	root ──── signs ──────▶ issuer ──── signs ──────▶ a proxy's certificate
//	  │                       │                          name, valid for a day
//	  └ trust-anchors.pem     └ issuer.pem, issuer.key
//
// A proxy sends a name, a token, and a certificate signing request. It gets a certificate
// if the request is for exactly that name, the name belongs to the trust domain, and a
// [Check] accepts the token.
//
// The key of the root signs the issuer and is then discarded.
package ca
