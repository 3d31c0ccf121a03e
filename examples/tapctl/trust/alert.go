package trust

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// alertOf returns the TLS alert with which the server ended the connection. ok is false if
// err is not the result of an alert.
func alertOf(err error) (alert string, ok bool) {
	// crypto/tls exports no type for the peer's alerts.
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return "", false
	}
	return strings.TrimPrefix(remote.Err.Error(), "tls: "), true
}

// explainAlert returns the error for a TLS alert of the server, with advice. Such an alert
// usually rejects the client certificate.
func (h *handshake) explainAlert(alert string, err error) *Error {
	reason := "it refused: " + alert
	// h.asked tells that the server has requested a certificate, and h.shown that one was sent.
	switch {
	case alert == "certificate required", h.asked.Load() && !h.shown:
		return &Error{reason, AdviceShow, err}
	case alert == "expired certificate":
		return &Error{reason, adviceRenewOwn(now()), err}
	case h.asked.Load() && strings.Contains(alert, "certificate"):
		return &Error{reason, adviceTrusted, err}
	}
	return &Error{reason, adviceOther, err}
}

// ended reports whether err means that the server closed the connection without a TLS
// alert.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isOurs reports whether err comes from this process and not from the server: this process
// closed the connection, or a timeout expired.
func isOurs(err error) bool {
	var late net.Error
	return errors.Is(err, net.ErrClosed) || errors.As(err, &late) && late.Timeout()
}
