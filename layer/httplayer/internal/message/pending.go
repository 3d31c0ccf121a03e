package message

import (
	"io"
	"net/http"
)

// pender is a body that knows what it holds.
type pender interface {
	// Pending returns how many bytes Read returns without waiting. If eof is
	// true, the body ends after them.
	Pending() (n int, eof bool)
}

// Pending reports what can be read from a body without waiting: see the method
// of that name of a body of this engine. Any other body has nothing pending.
func Pending(body io.Reader) (n int, eof bool) {
	if p, ok := body.(pender); ok {
		return p.Pending()
	}
	return 0, body == nil || body == http.NoBody
}
