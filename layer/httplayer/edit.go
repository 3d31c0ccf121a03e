package httplayer

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// EditRequest applies the changes c to a shallow copy of req with its own header map, and returns the
// copy. A Host in c replaces both req.Host and the host in its URL. If c removes User-Agent, net/http
// sends none. If c is empty, EditRequest returns req.
//
// A field that c sets or removes is also removed from the trailers, and so is one whose name differs only
// in dashes and underscores, such as X_User for X-User. CGI and WSGI servers read both as one field, so
// that a client could otherwise set it.
func (h HTTP) EditRequest(req *http.Request, c layer.HeaderMutation) *http.Request {
	if c.Empty() {
		return req
	}
	out := req
	// room holds the values that change sets, so that the usual edit needs no further allocation.
	var room []string
	// With trailers, a copy is needed in any case, because the body writes them to the request when it ends.
	if !h.InPlace || req.Header == nil || req.Trailer != nil {
		copied := &struct { // in one allocation
			http.Request

			room [4]string
		}{Request: *req}
		out, room = &copied.Request, copied.room[:]
		out.Header = ownHeader(req)
	}
	// Drop a Host header that the client sent beside :authority, because the
	// request has been routed by :authority.
	delete(out.Header, "Host")
	removeSpellings(out, req, c)
	change(out.Header, c, room)
	if slices.ContainsFunc(c.Remove, func(name string) bool { return strings.EqualFold(name, "User-Agent") }) {
		out.Header["User-Agent"] = nil // makes net/http send none
	}
	// The client's Host field was removed above, so this one comes from c.
	if host := out.Header.Get("Host"); host != "" {
		out.Header.Del("Host")
		out.Host, out.URL = host, withHost(req.URL, host)
	}
	return out
}

// EditPath returns a shallow copy of req whose URL has the given path and query, both percent-encoded.
// A path that is not encoded validly is kept in RawPath only, so that it is still sent as it is.
func (HTTP) EditPath(req *http.Request, path, query string) *http.Request {
	if req.URL == nil {
		return req
	}
	// An Opaque would take precedence over the new path.
	out, u := *req, *req.URL
	u.RawPath, u.RawQuery, u.Opaque = path, query, ""
	if decoded, err := url.PathUnescape(path); err == nil {
		u.Path = decoded
	}
	out.URL = &u
	return &out
}

// removeSpellings removes the fields that c sets or removes from the places where a client could still
// pass them: the trailers, and header fields with another spelling of the name, such as X_User for
// X-User. It changes out, which is req or a copy of req.
func removeSpellings(out, req *http.Request, c layer.HeaderMutation) {
	if len(c.Set) == 0 && len(c.Remove) == 0 {
		return
	}
	// Usually no name contains an underscore, and there is nothing to do.
	spelled := fields(out.Header).hasName(func(name string) bool { return strings.Contains(name, "_") }) ||
		slices.ContainsFunc(c.Set, func(f layer.HeaderField) bool { return strings.Contains(f.Name, "_") }) ||
		slices.ContainsFunc(c.Remove, func(name string) bool { return strings.Contains(name, "_") })
	if !spelled && req.Trailer == nil {
		return
	}
	// edited is also true for the exact name. In the trailers, that one must go too; in the header, the field is set
	// after this.
	edited := func(name string) bool {
		return slices.ContainsFunc(c.Set, func(f layer.HeaderField) bool { return sameField(f.Name, name) }) ||
			slices.ContainsFunc(c.Remove, func(removed string) bool { return sameField(removed, name) })
	}
	if spelled {
		maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return edited(name) })
	}
	removeTrailers(out, req, edited)
}

// sameField reports whether some servers read the names a and b as the same field, because they differ
// only in case, dashes and underscores.
func sameField(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if c, d := a[i], b[i]; c != d && !strings.EqualFold(a[i:i+1], b[i:i+1]) && (c != '_' && c != '-' || d != '_' && d != '-') {
			return false
		}
	}
	return true
}

// hasFieldPrefix reports whether name begins with prefix, as sameField compares them.
func hasFieldPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && sameField(name[:len(prefix)], prefix)
}

// withHost returns a copy of u with the given host. It returns u itself if u is nil or names no
// host.
func withHost(u *url.URL, host string) *url.URL {
	if u == nil || u.Host == "" {
		return u
	}
	moved := *u
	moved.Host = host
	return &moved
}

// EditResponse applies the changes c to rsp's header and returns rsp.
func (HTTP) EditResponse(rsp *http.Response, c layer.HeaderMutation) *http.Response {
	if c.Empty() {
		return rsp
	}
	change(headerOf(rsp), c, nil)
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

// change applies the changes c to h. It keeps the values in room, or allocates one if room is too small.
func change(h http.Header, c layer.HeaderMutation, room []string) {
	if len(room) < len(c.Set) {
		room = make([]string, len(c.Set))
	}
	for _, f := range c.Add {
		name := http.CanonicalHeaderKey(f.Name)
		h[name] = append(slices.Clip(h[name]), f.Value) // the slice may belong to another header, too
	}
	for i, f := range c.Set {
		room[i] = f.Value
		// A capacity of 1 keeps a later append from overwriting the next field's value.
		h[http.CanonicalHeaderKey(f.Name)] = room[i : i+1 : i+1]
	}
	for _, name := range c.Remove {
		h.Del(name)
	}
}

// NewResponse returns a response to req with a plain text body. The response to HEAD tells only
// the body length. The response to a gRPC request is sent with HTTP status 200, a gRPC status in
// the headers and no body. If direct.GRPC is 0, the gRPC status follows from direct.Status. A
// direct.Status outside 200 to 999 becomes 500.
//
// A request with a gRPC content type counts as gRPC if it was received over HTTP/2 or if this
// process makes it. NewResponse closes the body of a request that this process makes, as an
// [http.RoundTripper] must. A received request's body belongs to the server.
func (HTTP) NewResponse(req *http.Request, direct layer.DirectResponse) *http.Response {
	// A request without a RequestURI was not received, so this process makes it.
	own := req.RequestURI == ""
	if own {
		message.CloseBody(req)
	}
	// The reply adds up to 4 fields.
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

// replyGRPC turns rsp into a gRPC response that consists of headers only, with a gRPC status and a
// message.
func replyGRPC(rsp *http.Response, code uint32, message string) {
	setStatus(rsp.Header, code, message)
	rsp.Header.Set("Content-Type", grpcType)
	rsp.StatusCode, rsp.Status = http.StatusOK, "200 OK"
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = "HTTP/2.0", 2, 0
}

// replyText gives rsp a plain text body, unless its status forbids one. The response to HEAD gets only
// the headers.
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

// TeeRequest returns a request to send instead of req, and passes a copy of it to whole, for example to
// mirror it. whole receives the copy once its body has been read to the end, or immediately if there is
// no body. The copy has req's headers, trailers, Host and body, but not Expect and Connection: close.
// For CONNECT, upgrades, bodies longer than limit bytes, and bodies that fail or are closed early,
// whole receives nil and false. A body that a retry reads from GetBody is not copied. TeeRequest
// implements [layer.Editor].
func (HTTP) TeeRequest(req *http.Request, limit int64, whole func(copied *http.Request, ok bool)) *http.Request {
	empty := !hasBody(req)
	if isTunnel(req) || !empty && (limit <= 0 || req.ContentLength > limit) {
		whole(nil, false) // no copy
		return req
	}
	copied := detached(req)
	if empty {
		whole(copied, true) // the copy is complete
		return req
	}
	size := req.ContentLength
	if size <= 0 || len(req.Trailer) > 0 {
		size = -1 // unknown, or trailers follow the body
	}
	out := *req
	// awaiting forwards 100 Continue, which TeeBody does not know of.
	out.Body = awaiting(layer.TeeBody(req.Body, size, limit, func(kept []byte, ok bool) {
		if !ok {
			whole(nil, false) // no copy
			return
		}
		copied.Body = io.NopCloser(bytes.NewReader(kept))
		copied.Trailer = req.Trailer.Clone() // complete when the body ends
		whole(copied, true)                  // the copy is complete
	}), req)
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
