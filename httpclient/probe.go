package httpclient

import (
	"io"
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// probeTime is the longest wait for the first byte of a body. It is that of net/http.
const probeTime = 200 * time.Millisecond

// probed returns req without its body if the length of the body is unknown, the body is empty, and the
// method usually has none. Sent in chunks, an empty body confuses many servers, so http.Transport leaves
// it out, too. Of any other body, at most the first byte is read in advance. A request that sets
// TransferEncoding wants chunks, and one with trailers needs them.
func probed(req *http.Request) *http.Request {
	wantsChunks := len(req.TransferEncoding) > 0 || len(req.Trailer) > 0
	if req.Body == nil || req.Body == http.NoBody || req.ContentLength > 0 || wantsChunks || !lacksBody(req.Method) {
		return req
	}
	out := *req
	first := make(chan firstRead, 1)
	out.Body = &probedBody{req.Body, first}
	go func() {
		var r firstRead
		r.err = panics.Do("request body", func() (err error) {
			r.n, err = req.Body.Read(r.b[:])
			return err
		})
		first <- r
	}()
	timer := time.NewTimer(probeTime)
	defer timer.Stop()
	select {
	case r := <-first:
		if r.n == 0 && r.err == io.EOF { //nolint:errorlint // a Reader returns exactly this value
			closeBody(req)
			out.Body = http.NoBody
			out.GetBody = nil
			out.ContentLength = 0
			break
		}
		first <- r // for the first Read
	case <-timer.C: // a slow body is not empty
	case <-req.Context().Done():
	}
	return &out
}

// lacksBody reports whether requests with the method usually have no body.
func lacksBody(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions, "PROPFIND", "SEARCH":
		return true
	}
	return false
}

// firstRead is the result of the first Read of a body.
type firstRead struct {
	b   [1]byte
	n   int
	err error
}

// probedBody is a body whose first Read was made in advance, or is in progress.
type probedBody struct {
	io.ReadCloser

	first chan firstRead // has the result of that Read; nil after it was used
}

// Read returns the result of the first Read, and then reads.
func (b *probedBody) Read(p []byte) (int, error) {
	if b.first == nil || len(p) == 0 {
		return b.ReadCloser.Read(p)
	}
	r := <-b.first
	b.first = nil
	return copy(p, r.b[:r.n]), r.err
}
