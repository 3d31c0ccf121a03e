package trust

import (
	"fmt"
	"strings"
)

// Error is why there is no connection.
type Error struct {
	Reason string // what is wrong
	Advice string // what to do about it
	Err    error  // the cause
}

// Error returns the reason and the advice.
func (e *Error) Error() string { return e.Reason + ". " + e.Advice }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// gRPC passes on no error, but its text.
const mark = "by TLS: "

// marked is an Error on its way through gRPC.
type marked struct{ err *Error }

func (m marked) Error() string { return mark + m.err.Error() }

func (m marked) Unwrap() error { return m.err }

// Told finds an [Error] in the text of one of gRPC's.
func Told(text string) (told string, ok bool) {
	_, told, ok = strings.Cut(text, mark)
	return told, ok
}

// AdviceShow is for who came without a certificate, and should have one.
const AdviceShow = "It wants to know who you are: show a certificate with --cert FILE and --key FILE"

// What to do. Flags are those of tapctl.
const (
	adviceAnchors  = "--cacert is a file of PEM, with the certificates of the authority that vouches for servers"
	adviceIdentity = "--server-identity is a name as in the certificate of the server"
	adviceCert     = "--cert is a file of PEM, with your certificate and those that vouch for it; --key its key, if that is elsewhere"
	adviceOther    = "Is this the tap port, and does it speak TLS 1.3? One in clear is http://host:port"
	adviceClear    = "It does not speak TLS: leave the flags for TLS out, or write http://host:port for this one." +
		" In clear, tap answers on its own machine alone"
	adviceUnknown = "Give the certificates of its authority: --cacert FILE"
	adviceUnfit   = "Its certificate, or one of those that vouch for it, is no good for a server: it has to be issued anew there"
	adviceTrusted = "It does not trust who issued your certificate (--cert): show one of an authority that it trusts," +
		" with those that vouch for it in the same file"
)

func adviceRenewOwn(now string) string {
	return fmt.Sprintf("Have yours renewed (--cert), or set the clock: it is %s here", now)
}

func adviceRenewed(now string) string {
	return "It has to be renewed there; or the clock is wrong here, where it is " + now
}

func adviceName(seen string) string {
	if seen == "" {
		return "It has no name to be known by. Is this the process that you mean?"
	}
	return "If that is the one you mean: --server-identity " + seen
}
