package httplayer

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// upgrade is what h says that its connection is upgraded to, or is to be.
func upgrade(h http.Header) string {
	if len(h["Upgrade"]) == 0 || !namedInConnection(h, "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// upgradeError returns why r cannot ask for its upgrade. ReverseProxy would take
// that for a failure of its own.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade is no printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}

// switchError returns why a 101 is no answer to req, which did not ask for it, or
// for something else.
func switchError(req *http.Request, rsp *http.Response) error {
	asked, got := upgrade(req.Header), upgrade(rsp.Header)
	if got == "" || !strings.EqualFold(asked, got) {
		return &peerError{fmt.Errorf("httplayer: the endpoint switched to %q where %q was asked for", got, asked)}
	}
	if _, ok := rsp.Body.(io.ReadWriteCloser); !ok {
		return &peerError{errors.New("httplayer: the endpoint switched protocols and has no connection")}
	}
	return nil
}
