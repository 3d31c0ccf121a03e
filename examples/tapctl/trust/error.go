package trust

import (
	"fmt"
	"strings"
)

// Error is a failed connection's reason, with advice for the user.
type Error struct {
	Reason string // the problem
	Advice string // how to fix it
	Err    error  // the cause
}

// Error returns the reason and the advice as one text.
func (e *Error) Error() string { return e.Reason + ". " + e.Advice }

// Unwrap returns Err, the cause.
func (e *Error) Unwrap() error { return e.Err }

// mark is a prefix in each marked error's text. FindError searches for it, because gRPC keeps
// only the text of an error.
const mark = "by TLS: "

// marked wraps an Error that a handshake returns to gRPC. The text of marked begins with
// mark.
type marked struct{ err *Error }

func (m marked) Error() string { return mark + m.err.Error() }

func (m marked) Unwrap() error { return m.err }

// FindError returns the text of an [Error] that occurs in text, which comes from a gRPC error. ok
// is false if there is none.
func FindError(text string) (found string, ok bool) {
	_, found, ok = strings.Cut(text, mark)
	return found, ok
}

// AdviceShow is the advice if the server requires a client certificate and tapctl does not have
// one.
const AdviceShow = "The server requires a client certificate: --cert FILE and --key FILE"

// Texts for an [Error]'s Advice. The flags in them are tapctl's.
const (
	adviceAnchors  = "--cacert is a PEM file with the trust anchors of servers"
	adviceIdentity = "--server-identity is a name as in the certificate of the server"
	adviceCert     = "--cert is a PEM file with the client certificate and its chain; --key is the key, if it is in another file"
	adviceOther    = "Is this the tap port, and does it speak TLS 1.3? A port without TLS is http://host:port"
	adviceClear    = "The server does not speak TLS: omit the TLS flags, or use http://host:port for this target." +
		" Without TLS, tap serves clients of its own machine only"
	adviceUnknown = "Pass its trust anchors: --cacert FILE"
	adviceUnfit   = "The server's certificate chain is not valid for a server: it must be issued again"
	adviceTrusted = "The server does not trust the issuer of the client certificate (--cert): use one of a trusted issuer," +
		" with its chain in the same file"
)

// adviceRenewOwn tells how to replace an expired client certificate. now is this machine's time, which may be wrong.
func adviceRenewOwn(now string) string {
	return fmt.Sprintf("Renew the client certificate (--cert), or correct the clock: it is %s here", now)
}

// adviceRenewed tells what to do about an expired server certificate. now is this machine's time, which may be
// wrong.
func adviceRenewed(now string) string {
	return "Renew the server's certificate, or correct the local clock: it is " + now
}

// adviceName tells how to accept a server with the name peer, which is "" if its certificate has none.
func adviceName(peer string) string {
	if peer == "" {
		return "The certificate has no name. Is this the intended process?"
	}
	return "If this is the intended process: --server-identity " + peer
}
