package httplayer

import (
	"errors"
	"io"
	"net/http"
)

// withoutTrailers drops fields from the trailers of req, a copy of what a client
// sent. They come with the end of the body, into the Trailer that the server made,
// when a client has announced any.
func withoutTrailers(req *http.Request, drops func(name string) bool) {
	came := req.Trailer
	req.Trailer = make(http.Header, len(came))
	for name, values := range came {
		if !drops(name) {
			req.Trailer[name] = values
		}
	}
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &untrailed{ReadCloser: req.Body, came: came, left: req.Trailer, drops: drops}
	}
}

// untrailed is a body that passes the trailers on when it ends, but for some. They
// are complete then, and not before.
type untrailed struct {
	io.ReadCloser
	came, left http.Header
	drops      func(name string) bool // nil: none
}

func (b *untrailed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name, values := range b.came {
			if b.drops == nil || !b.drops(name) {
				b.left[name] = values
			}
		}
	}
	return n, err
}
