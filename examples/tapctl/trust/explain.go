package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// explain returns an Error for err, which a failed handshake returned, with a reason and advice
// for the user.
func (h *handshake) explain(err error) *Error {
	// err may already have been explained by an inner step.
	if explained := (*Error)(nil); errors.As(err, &explained) {
		return explained
	}
	// The client's own rejection is more specific than what the connection shows.
	if e := h.explainServer(err); e != nil {
		return e
	}
	var plaintext tls.RecordHeaderError
	// The order matters: an alert says most, then what the bytes show, and last only that the connection ended.
	switch alert, ok := alertOf(err); {
	case ok:
		return h.explainAlert(alert, err)
	case errors.As(err, &plaintext):
		return &Error{"it does not answer with TLS", adviceClear, err}
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{"it does not answer to TLS", adviceOther, err}
	case !ended(err):
		return &Error{err.Error(), adviceOther, err}
	case h.asked.Load() && h.shown:
		return &Error{"it closed the connection after the client certificate", adviceTrusted, err}
	case h.asked.Load():
		return &Error{"it closed the connection without a client certificate", AdviceShow, err}
	}
	return &Error{"it ended the connection: " + err.Error(), adviceOther, err}
}

// explainServer returns an Error if err reports that the client rejected the server certificate.
// Otherwise it returns nil.
func (h *handshake) explainServer(err error) *Error {
	var (
		host x509.HostnameError
		peer *layer.Error
	)
	if errors.As(err, &host) {
		presented := first(host.Certificate)
		return &Error{fmt.Sprintf("expected %s, seen %s", h.expected, orNone(presented)), adviceName(presented), err}
	}
	reason := err.Error()
	advice := adviceChain(err)
	// peer contains the reason why package identity has rejected the certificate.
	if errors.Is(err, identity.ErrPeerIdentity) && errors.As(err, &peer) {
		switch {
		// Only the name is wrong.
		case peer.Err == nil:
			return &Error{peer.Reason, adviceName(h.seen()), err}
		case advice == adviceUnfit: // the names do not matter
			reason = peer.Err.Error()
		default:
			reason = peer.Reason + ": " + peer.Err.Error()
		}
	}
	if advice == "" {
		return nil
	}
	return &Error{reason, advice, err}
}

// adviceChain returns the advice for err if it reports an invalid certificate chain. It
// returns "" for other errors. Errors with an advice of their own come first, because refused is in all
// errors of crypto/tls about a chain, and ErrPeerIdentity in all of package identity.
func adviceChain(err error) string {
	var (
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		noRoots x509.SystemRootsError
		refused *tls.CertificateVerificationError // for all causes
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return adviceRenewed(now())
	// With the trust anchors of an issuer that is not a CA, the chain would still be invalid.
	case errors.As(err, &unknown) && !noAuthority(unknown), errors.As(err, &noRoots):
		return adviceUnknown
	case errors.As(err, &refused), errors.As(err, &invalid), errors.Is(err, identity.ErrPeerIdentity):
		return adviceUnfit
	}
	return ""
}

// noAuthority reports whether err means that an issuer in the chain is not a CA. It compares
// texts, because crypto/x509 does not export the cause.
func noAuthority(err x509.UnknownAuthorityError) bool {
	return strings.Contains(err.Error(), x509.ConstraintViolationError{}.Error())
}

// first returns the first DNS name in the certificate c. Without a DNS name it returns
// the first URI, and without both it returns "".
func first(c *x509.Certificate) string {
	// A nil c has no names.
	switch {
	case c == nil:
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	}
	return ""
}

// seen returns the first name in the server's certificate, or "" if there is none.
func (h *handshake) seen() string {
	if h.conn == nil {
		return ""
	}
	certs := h.conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return ""
	}
	return first(certs[0])
}

// orNone returns name, or "none" if it is empty.
func orNone(name string) string {
	if name == "" {
		return "none"
	}
	return name
}
