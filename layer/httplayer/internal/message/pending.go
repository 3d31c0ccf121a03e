package message

import (
	"io"
	"net/http"
)

// pender is a body that reports how many bytes it has buffered.
type pender interface {
	// Pending returns the number of bytes that Read can return without waiting. If eof is
	// true, the body ends after these bytes.
	Pending() (n int, eof bool)
}

// Pending returns the number of bytes that can be read from body without waiting. If eof is
// true, the body ends after these bytes. If body has no method Pending, n is 0, and eof is
// true only for nil and for the empty body of package http.
func Pending(body io.Reader) (n int, eof bool) {
	if p, ok := body.(pender); ok {
		return p.Pending()
	}
	return 0, body == nil || body == http.NoBody
}
