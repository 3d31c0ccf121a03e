// Package kube connects the certificate authority of package ca with a Kubernetes cluster.
//
//	proxy ── Certify: name, token, CSR ──▶ ca ── Reviewer.Check ──▶ API server: TokenReview
//	                                        ▲
//	        Source.Run: trust anchors, issuer │
//	 ConfigMap linkerd-identity-trust-roots ──┴── mounted Secret: tls.crt, tls.key
//
// A [Reviewer] validates a request's token. It must be a token for the ServiceAccount that the
// requested name contains, for the authority's audience. Kubernetes projects such tokens into
// pods.
//
// A [Source] provides the trust anchors and the issuer, and replaces them when they change.
//
// No message from this package contains a token or a key.
package kube
