package httplayer

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// DropRequestTrailers returns a layer that removes the trailers of every request, as nginx does.
// Servers may read a trailer, such as X-User, as a header field, but layers that check and edit
// headers see it too late, after the body. gRPC calls have no trailers in requests.
//
// Admission, Cancellation, Body and Errors: not changed. Cost: a copy of a request that may have
// trailers.
func DropRequestTrailers() Layer {
	return edits("drop_request_trailers", nil, func(req *http.Request) *http.Request {
		if req.Trailer == nil {
			return req
		}
		out := *req
		out.Trailer = nil
		return &out
	})
}

// DropInformational returns a layer that discards the 1xx responses of the service below, which a
// [Server] would send to the client. Use it for a request that a proxy itself makes while it handles
// a request, for example for authorization.
//
// Admission, Cancellation, Body and Errors: not changed. Cost: one allocation.
func DropInformational() Layer {
	return around.Layer("drop_informational", nil, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		return next.Call(reqctx.WithValue(ctx, message.InformerKey, nil), req)
	})
}

// CertificateFields selects the fields that [ForwardClientCertificate] sets.
type CertificateFields int

// The fields of RFC 9440.
const (
	CertificateOnly      CertificateFields = iota // Client-Cert
	CertificateWithChain                          // Client-Cert and Client-Cert-Chain
)

// ForwardClientCertificate returns a layer that offers the verified certificate of a TLS client to
// servers, by the header fields of RFC 9440. Client-Cert has the certificate, and Client-Cert-Chain the
// certificates between it and its root. The layer first removes these fields, so that a request without
// a verified certificate arrives without them. A peer within one of the prefixes trusted is a proxy,
// whose fields are kept and whose own certificate is not offered. [Forwarded] also removes the fields of
// clients that are not trusted.
//
// Admission, Cancellation, Body and Errors: not changed, except for the trailers of these names.
//
// Cost: a copy of the request and its headers, and the certificate's encoding.
func ForwardClientCertificate(which CertificateFields, trusted ...netip.Prefix) Layer {
	peers := trustedPeers(slices.Clone(trusted))
	state := layer.State{{Key: "chain", Value: which == CertificateWithChain}, {Key: "trusted", Value: []netip.Prefix(peers)}}
	return edits("forward_client_certificate", state, func(req *http.Request) *http.Request {
		// A trusted peer is a proxy, whose fields describe the real client.
		if peers.contains(HTTP{}.Source(req).Addr().WithZone("")) {
			return req
		}
		out := strip(req, isCertificate)
		tls := clientTLS(req)
		if tls == nil || len(tls.VerifiedChains) == 0 {
			return out
		}
		// strip found nothing to remove and returned req itself, which belongs to the caller.
		if out == req {
			out = fork(req)
		}
		chain := tls.VerifiedChains[0]
		out.Header[clientCertField] = []string{byteSequence(chain[0].Raw)}
		if last := len(chain) - 1; which == CertificateWithChain && last > 1 { // without the root
			values := make([]string, 0, last-1)
			for _, c := range chain[1:last] {
				values = append(values, byteSequence(c.Raw))
			}
			out.Header[clientCertChainField] = []string{strings.Join(values, ", ")}
		}
		return out
	})
}

const (
	clientCertField      = "Client-Cert"
	clientCertChainField = "Client-Cert-Chain"
)

// isCertificate reports whether servers may read name as one of the fields of RFC 9440.
func isCertificate(name string) bool {
	return sameField(name, clientCertField) || sameField(name, clientCertChainField)
}

// byteSequence returns b as a byte sequence of structured fields (RFC 9651).
func byteSequence(b []byte) string { return ":" + base64.StdEncoding.EncodeToString(b) + ":" }

// isClientIdentity reports whether name is a header field in which proxies usually send a client
// certificate, or a part of it. It compares names as sameField does.
func isClientIdentity(name string) bool {
	isField := func(field string) bool { return sameField(name, field) }
	begins := func(prefix string) bool { return hasFieldPrefix(name, prefix) }
	return isCertificate(name) || isField("X-Client-Cert") || isField("X-Client-Certificate") || isField("X-Arr-Clientcert") ||
		begins("Ssl-Client-") || begins("X-Ssl-Client-") || begins("X-Amzn-Mtls-Clientcert")
}
