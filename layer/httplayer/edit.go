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
)

// Editor is the [layer.Editor] of net/http. The zero value is ready to use.
type Editor struct{}

var _ layer.Editor[*http.Request, *http.Response] = Editor{}

// EditRequest returns a shallow copy of req with a header of its own. Host, if it
// is set, takes the place of the Host of req and of its URL. A User-Agent that
// is removed is not replaced by that of net/http.
func (Editor) EditRequest(req *http.Request, c layer.HeaderMutation) *http.Request {
	if c.Empty() {
		return req
	}
	out := req.WithContext(req.Context())
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	// What is there was not asked for by c. A client of HTTP/2 can send one beside
	// :authority, by which the request has been routed.
	onlyHost(out)
	change(out.Header, c)
	if slices.ContainsFunc(c.Remove, func(name string) bool { return strings.EqualFold(name, "User-Agent") }) {
		out.Header["User-Agent"] = nil // how net/http is told to send none
	}
	if host := out.Header.Get("Host"); host != "" {
		out.Header.Del("Host")
		out.Host, out.URL = host, elsewhere(req.URL, host)
	}
	return out
}

// elsewhere is u at another host, if it says one.
func elsewhere(u *url.URL, host string) *url.URL {
	if u == nil || u.Host == "" {
		return u
	}
	moved := *u
	moved.Host = host
	return &moved
}

// EditResponse changes the header of rsp.
func (Editor) EditResponse(rsp *http.Response, c layer.HeaderMutation) *http.Response {
	if c.Empty() {
		return rsp
	}
	if rsp.Header == nil {
		rsp.Header = make(http.Header)
	}
	change(rsp.Header, c)
	return rsp
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

// NewResponse makes a response with a text for a person; one to HEAD has its length
// only. A gRPC request gets a gRPC status in a response that is nothing but a
// header, with HTTP status 200: the one that gRPC has for the HTTP status, if
// none is chosen. It is one by its content type, if it came by HTTP/2, or is a
// request of our own, whose protocol nobody knows yet.
//
// The body of a request of our own is closed, as an [http.RoundTripper] has to;
// that of a request that a server received is the server's. A status that is
// none is 500.
func (Editor) NewResponse(req *http.Request, a layer.DirectResponse) *http.Response {
	own := req.RequestURI == ""
	if own {
		closeBody(req)
	}
	h := make(http.Header, len(a.Header)+4)
	for _, f := range a.Header {
		h.Add(f.Name, f.Value)
	}
	rsp := &http.Response{
		StatusCode: a.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: http.NoBody, Request: req,
	}
	if req.ProtoMajor == 2 {
		rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = "HTTP/2.0", 2, 0
	}
	if a.Status < 200 || a.Status > 999 {
		rsp.StatusCode = http.StatusInternalServerError
	}
	if isGRPC(req) || own && strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc") {
		replyGRPC(rsp, a)
	} else {
		replyText(rsp, a.Message)
	}
	rsp.Status = strings.TrimSpace(strconv.Itoa(rsp.StatusCode) + " " + http.StatusText(rsp.StatusCode))
	return rsp
}

func replyGRPC(rsp *http.Response, a layer.DirectResponse) {
	chosen := StatusError{Code: rsp.StatusCode, GRPC: a.GRPC}
	setStatus(rsp.Header, chosen.grpcCode(), a.Message)
	rsp.Header.Set("Content-Type", "application/grpc")
	rsp.StatusCode = http.StatusOK
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
	// A text may quote what a client sent: nobody is to take it for a page.
	rsp.Header.Set("Content-Type", "text/plain; charset=utf-8")
	rsp.Header.Set("X-Content-Type-Options", "nosniff")
	if rsp.Request.Method != http.MethodHead {
		rsp.Body = io.NopCloser(strings.NewReader(text))
	}
}

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
