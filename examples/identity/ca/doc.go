// Package ca is a small certificate authority. It serves linkerd's identity API,
// io.linkerd.proxy.identity.Identity.
//
//	root ──── signs ──────▶ issuer ──── signs ──────▶ a proxy's certificate
//	  │                       │                          name, valid for a day
//	  └ trust-anchors.pem     └ issuer.pem, issuer.key
//
// A proxy sends a name, a token and a certificate signing request. It receives a certificate if
// three conditions hold: the request is for this name only, the name belongs to the trust domain,
// and a [Check] accepts the token.
//
// A new root's key is discarded after it has signed the issuer. [Authority.Replace] replaces the
// issuer and the trust anchors.
package ca
