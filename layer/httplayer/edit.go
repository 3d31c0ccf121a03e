package httplayer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Editor changes headers of requests and responses, copies requests and creates responses. It
// implements [layer.Editor] for the messages of net/http. The zero value is ready to use.
type Editor struct {
	// InPlace makes EditRequest change the request itself instead of a copy. The caller
	// must own the request, and must not send it twice.
	InPlace bool
}

var _ layer.Editor[*http.Request, *http.Response] = Editor{}

// EditRequest applies the changes of c to a shallow copy of req with its own header map,
// and returns the copy. A Host in c replaces the Host of req and the host of its URL. If c
// removes User-Agent, net/http sends none. If c is empty, EditRequest returns req.
func (e Editor) EditRequest(req *http.Request, c layer.HeaderMutation) *http.Request {
	if c.Empty() {
		return req
	}
	out := req
	if !e.InPlace || req.Header == nil {
		out = fork(req)
	}
	// Drop a Host header that the client sent beside :authority, because the
	// request has been routed by :authority.
	delete(out.Header, "Host")
	change(out.Header, c)
	if slices.ContainsFunc(c.Remove, func(name string) bool { return strings.EqualFold(name, "User-Agent") }) {
		out.Header["User-Agent"] = nil // makes net/http send none
	}
	if host := out.Header.Get("Host"); host != "" {
		out.Header.Del("Host")
		out.Host, out.URL = host, withHost(req.URL, host)
	}
	return out
}

// withHost returns a copy of u with the given host. It returns u itself if u is nil or has
// no host.
func withHost(u *url.URL, host string) *url.URL {
	if u == nil || u.Host == "" {
		return u
	}
	moved := *u
	moved.Host = host
	return &moved
}

// EditResponse applies the changes of c to the header of rsp and returns rsp.
func (Editor) EditResponse(rsp *http.Response, c layer.HeaderMutation) *http.Response {
	if c.Empty() {
		return rsp
	}
	change(headerOf(rsp), c)
	return rsp
}

// headerOf returns the header of rsp. It first sets the header if that is nil, as in a response that
// was made by hand.
func headerOf(rsp *http.Response) http.Header {
	if rsp.Header == nil {
		rsp.Header = make(http.Header)
	}
	return rsp.Header
}

func change(h http.Header, c layer.HeaderMutation) {
	for _, f := range c.Add {
		h.Add(f.Name, f.Value)
	}
	for _, f := range c.Set {
		h.Set(f.Name, f.Value)
	}
	for _, name := range c.Remove {
		h.Del(name)
	}
}

// NewResponse returns a response to req with a plain text body. The response to HEAD has
// only the length of the body. The response to a gRPC request has HTTP status 200, a gRPC
// status in the headers and no body. If direct.GRPC is 0, the gRPC status follows from
// direct.Status. A direct.Status outside 200 to 999 becomes 500.
//
// A request with a gRPC content type counts as gRPC if it was received over HTTP/2 or if
// this process makes it. NewResponse closes the body of a request that this process makes,
// as an [http.RoundTripper] must. The body of a received request belongs to the server.
func (Editor) NewResponse(req *http.Request, direct layer.DirectResponse) *http.Response {
	own := req.RequestURI == ""
	if own {
		message.CloseBody(req)
	}
	h := make(http.Header, len(direct.Header)+4)
	for _, f := range direct.Header {
		h.Add(f.Name, f.Value)
	}
	status := direct.Status
	if status < 200 || status > 999 {
		status = http.StatusInternalServerError
	}
	rsp := newResponse(req, status, h)
	if req.ProtoMajor == 0 {
		rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = proto11, 1, 1
	}
	if isGRPC(req) || own && strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc") {
		chosen := StatusError{Code: status, GRPC: direct.GRPC}
		replyGRPC(rsp, chosen.grpcCode(), direct.Message)
	} else {
		replyText(rsp, direct.Message)
	}
	return rsp
}

func replyGRPC(rsp *http.Response, code uint32, message string) {
	setStatus(rsp.Header, code, message)
	rsp.Header.Set("Content-Type", grpcType)
	rsp.StatusCode, rsp.Status = http.StatusOK, "200 OK"
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = "HTTP/2.0", 2, 0
}

func replyText(rsp *http.Response, text string) {
	if rsp.StatusCode == http.StatusNoContent || rsp.StatusCode == http.StatusNotModified {
		return
	}
	rsp.ContentLength = int64(len(text))
	rsp.Header.Set("Content-Length", strconv.Itoa(len(text)))
	if text == "" {
		return
	}
	// The text may quote input of the client, so browsers must not render it as
	// HTML.
	rsp.Header.Set("Content-Type", "text/plain; charset=utf-8")
	rsp.Header.Set("X-Content-Type-Options", "nosniff")
	if rsp.Request.Method != http.MethodHead {
		rsp.Body = io.NopCloser(strings.NewReader(text))
	}
}

// TeeRequest returns a request to send instead of req. The function whole receives a copy of this
// request when its body has been read to the end, or at once without a body. The copy has the
// headers, trailers, Host and body of req, but not Expect and Connection: close. For CONNECT,
// upgrades, bodies longer than limit bytes, and bodies that fail or are closed early, whole
// receives nil and false. A body that a retry reads from GetBody is not copied. TeeRequest is part
// of [layer.Editor].
func (Editor) TeeRequest(req *http.Request, limit int64, whole func(copied *http.Request, ok bool)) *http.Request {
	empty := !hasBody(req)
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
		size = -1 // unknown, or trailers follow the body
	}
	out := *req
	out.Body = layer.TeeBody(req.Body, size, limit, func(kept []byte, ok bool) {
		if !ok {
			whole(nil, false)
			return
		}
		copied.Body = io.NopCloser(bytes.NewReader(kept))
		copied.Trailer = req.Trailer.Clone() // complete when the body ends
		whole(copied, true)
	})
	return &out
}

// detached returns a deep copy of req without its body and with a context that never ends.
func detached(req *http.Request) *http.Request {
	copied := req.Clone(context.Background())
	copied.Close, copied.GetBody, copied.RequestURI = false, nil, ""
	copied.Cancel = nil //nolint:staticcheck // belongs to the caller
	copied.Header.Del("Expect")
	if copied.Body != nil {
		copied.Body = http.NoBody
	}
	return copied
}
