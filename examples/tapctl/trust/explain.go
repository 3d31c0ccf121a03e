package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// explain says what is wrong.
func (h *handshake) explain(err error) *Error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return own
	}
	if e := h.explainServer(err); e != nil {
		return e
	}
	var plaintext tls.RecordHeaderError
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
		return &Error{"it ended the connection when it was shown your certificate", adviceTrusted, err}
	case h.asked.Load():
		return &Error{"it ended the connection when it was shown no certificate", adviceShow, err}
	}
	return &Error{"it ended the connection: " + err.Error(), adviceOther, err}
}

// explainServer is about the certificate of the server.
func (h *handshake) explainServer(err error) *Error {
	var (
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		host    x509.HostnameError
	)
	reason := err.Error()
	if e := (*layer.Error)(nil); errors.As(err, &e) && errors.Is(err, identity.ErrPeer) {
		if reason = e.Reason; e.Err != nil {
			reason += ": " + e.Err.Error()
		}
	}
	switch {
	case errors.As(err, &unknown):
		return &Error{reason, adviceUnknown, err}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &Error{reason, adviceRenewed(now()), err}
	case errors.As(err, &host):
		seen := first(host.Certificate)
		return &Error{fmt.Sprintf("expected %s, seen %s", h.expected, orNobody(seen)), adviceName(seen), err}
	case errors.Is(err, identity.ErrPeer):
		return &Error{reason, adviceName(h.seen()), err}
	}
	return nil
}

// first is the name by which a server would be known.
func first(c *x509.Certificate) string {
	switch {
	case c == nil:
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	}
	return ""
}

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

func orNobody(name string) string {
	if name == "" {
		return "nobody"
	}
	return name
}
