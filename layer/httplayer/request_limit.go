package httplayer

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
)

// LimitRequestBody returns a layer that rejects requests whose body exceeds limit bytes with the status
// 413. A request with such a Content-Length is rejected at once. Without a length, a body may be sent
// in part: it fails at the first byte above the limit. All messages in a gRPC stream count together.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: counted. Reads fail above the limit.
//
// Errors: a [StatusError] with the code 413.
//
// Cost: for a body without a length, a copy of the request.
func LimitRequestBody(limit int64) Layer {
	state := layer.State{{Key: "bytes", Value: limit}}
	text := fmt.Sprintf("the request body is above %d bytes", limit)
	tooLarge := &StatusError{Code: http.StatusRequestEntityTooLarge, GRPC: grpcResourceExhausted, Reason: text, Detail: text}
	return around.Layer("limit_request_body", state, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		switch {
		case !hasBody(req):
		case req.ContentLength > limit:
			return nil, tooLarge
		// Without a length, the body is counted as it is read.
		case req.ContentLength < 0:
			out := *req
			out.Body = &limitedBody{wrappedBody{req.Body}, limit, tooLarge}
			if again := req.GetBody; again != nil {
				out.GetBody = func() (io.ReadCloser, error) {
					body, err := again()
					if err != nil {
						return nil, err
					}
					return &limitedBody{wrappedBody{body}, limit, tooLarge}, nil
				}
			}
			req = &out
		}
		return next.Call(ctx, req)
	})
}

// limitedBody is a body that fails with the error tooLarge after a number of bytes.
type limitedBody struct {
	wrappedBody
	left     int64 // bytes that may still be read; below 0 after tooLarge
	tooLarge error
}

// Read reads from the body until it exceeds the limit. From then on it returns the error tooLarge.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.tooLarge
	}
	if int64(len(p))-1 > b.left {
		p = p[:b.left+1] // one more byte shows whether the body ends
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		n = int(b.left)
		b.left = -1
		return n, b.tooLarge
	}
	b.left -= int64(n)
	return n, err
}
