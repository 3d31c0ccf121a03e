package httplayer

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// TeeRequest copies the request with its header, trailers and Host as they are, but
// for what is between two hops: it does not wait for 100 Continue, and does not
// ask to close its connection. CONNECT and requests to upgrade a connection are
// not copied.
//
// The body that is copied is that of req. Where a retry gets another one from
// GetBody, because the first was not read to its end, there is no copy.
func (Editor) TeeRequest(req *http.Request, limit int64, whole func(copied *http.Request, ok bool)) *http.Request {
	empty := req.Body == nil || req.Body == http.NoBody
	if isTunnel(req) || !empty && (limit <= 0 || req.ContentLength > limit) {
		whole(nil, false)
		return req
	}
	copied := detached(req)
	if empty {
		whole(copied, true)
		return req
	}
	size := req.ContentLength
	if size <= 0 || len(req.Trailer) > 0 {
		size = -1 // not known, or not the end
	}
	out := *req
	out.Body = layer.TeeBody(req.Body, size, limit, func(kept []byte, ok bool) {
		if !ok {
			whole(nil, false)
			return
		}
		copied.Body = io.NopCloser(bytes.NewReader(kept))
		if size < 0 {
			// They came with the end of the body, to the goroutine that read it.
			copied.Trailer = req.Trailer.Clone()
		}
		whole(copied, true)
	})
	return &out
}

// detached returns a copy of req that shares nothing with it, without a body.
func detached(req *http.Request) *http.Request {
	copied := req.Clone(context.Background())
	copied.Close, copied.GetBody, copied.RequestURI = false, nil, ""
	copied.Cancel = nil //nolint:staticcheck // the caller's, if there is still one who uses it
	copied.Header.Del("Expect")
	if copied.Body != nil {
		copied.Body = http.NoBody
	}
	return copied
}
