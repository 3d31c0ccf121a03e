package httplayer

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// Service is a [layer.Service] for the messages of net/http. If it rejects a request, the
// body stays unread and open. A service that admits a request closes its body, as an
// [http.RoundTripper] does.
type Service = layer.Service[*http.Request, *http.Response]

// These are generic types from package layer, for net/http's messages.
type (
	Layer  = layer.Layer[*http.Request, *http.Response]
	Stack  = layer.Stack[*http.Request, *http.Response]
	Option = layer.Option[*http.Response]

	RetryPolicy    = layer.RetryPolicy[*http.Request, *http.Response]
	HedgePolicy    = layer.HedgePolicy[*http.Request]
	FallbackPolicy = layer.FallbackPolicy[*http.Request, *http.Response]
	FaultPolicy    = layer.FaultPolicy[*http.Request]
	MirrorPolicy   = layer.MirrorPolicy[*http.Request]
)

// NewStack returns an empty stack for the messages of net/http. Its layers use [HTTP], unless opts
// replace it or parts of it.
func NewStack(opts ...Option) Stack {
	return layer.NewStack[*http.Request](append([]Option{layer.WithProtocol(HTTP{})}, opts...)...)
}

// Completion is the [layer.Completion] for HTTP. It returns rsp with a body that calls o.End when
// it was read to its end, has failed or is closed. When End(nil) is called, the trailers can be
// read. If there is no body (HEAD, 204, 304, a length of 0), Completion calls o.End(nil) at once.
// The body of an upgraded connection (101) stays an [io.ReadWriteCloser] and keeps its
// CloseWrite. It ends when it is closed, also after it was read to its end.
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

// ended reports whether rsp's headers show that neither a body nor trailers will arrive, so that the
// response has ended already.
func ended(rsp *http.Response) bool {
	switch {
	case rsp.Body == nil, rsp.Body == http.NoBody,
		rsp.StatusCode == http.StatusNoContent, rsp.StatusCode == http.StatusNotModified,
		rsp.Request != nil && rsp.Request.Method == http.MethodHead:
		return true
	case rsp.StatusCode == http.StatusSwitchingProtocols, // net/http reports length 0
		rsp.ContentLength != 0, rsp.ProtoMajor == 0: // the length of a response made by hand may be missing
		return false
	}
	// In HTTP/2 trailers may follow a body with Content-Length 0. Without that
	// header net/http knows the end from END_STREAM.
	return rsp.ProtoMajor == 1 || len(rsp.Header["Content-Length"]) == 0
}
