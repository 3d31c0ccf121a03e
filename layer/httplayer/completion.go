package httplayer

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// Completion is the [layer.Completion] for HTTP. It returns rsp with a body that calls o.End
// when the body was read to its end, has failed or is closed. At the call of End(nil), the
// trailers can be read. For a response without a body (HEAD, 204, 304, a length of 0),
// Completion calls o.End(nil) at once. The body of an upgraded connection (101) stays an
// [io.ReadWriteCloser] and keeps its CloseWrite.
//
// Completion allocates once per body, for any number of observers.
func Completion(ctx context.Context, rsp *http.Response, o layer.Observer) *http.Response {
	if rsp == nil || ended(rsp) {
		o.End(nil)
		return rsp
	}
	rsp.Body = layer.ObserveBody(ctx, rsp.Body, o)
	return rsp
}

// ended reports whether the headers of rsp show that neither a body nor trailers will
// arrive. If the result is false, only reading the body shows its end.
func ended(rsp *http.Response) bool {
	switch {
	case rsp.Body == nil || rsp.Body == http.NoBody:
		return true
	case rsp.StatusCode == http.StatusSwitchingProtocols:
		return false // net/http reports length 0
	case rsp.StatusCode == http.StatusNoContent || rsp.StatusCode == http.StatusNotModified:
		return true
	case rsp.Request != nil && rsp.Request.Method == http.MethodHead:
		return true
	case rsp.ContentLength != 0 || rsp.ProtoMajor == 0:
		// The length of a response made by hand may be missing.
		return false
	}
	// In HTTP/2 trailers may follow a body with Content-Length 0. Without that
	// header net/http knows the end from END_STREAM.
	return rsp.ProtoMajor == 1 || len(rsp.Header["Content-Length"]) == 0
}

// halfCloser is a connection that can close its sending half.
type halfCloser interface{ CloseWrite() error }
