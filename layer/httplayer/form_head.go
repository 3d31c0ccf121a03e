package httplayer

import (
	"bytes"
	"io"
	"net/http"
)

// inForm makes net/http write the request in the received form, without an
// added length of 0. w is the connection of the request.
func (o outgoing) inForm(f form, req *http.Request, w *wire) {
	if req.ProtoMajor >= 2 && len(o.Header[origProtoField]) > 0 {
		// These fields are for HTTP/2, which the endpoint does not support.
		o.Header = o.Header.Clone()
		delete(o.Header, origProtoField)
	}
	switch f {
	case originForm:
	case absoluteForm:
		o.URL = inAbsoluteForm(o.URL)
	case dedicated:
		w.head = &plainHead{ten: isHTTP10(req) && o.ContentLength >= 0, noHost: (Accessor{}).Authority(req) == ""}
	}
	if req.RequestURI != "" && req.ProtoMajor == 1 && o.body == nil {
		o.unsized()
	}
}

// unsized prevents that net/http adds Content-Length: 0 to a method that
// usually has a body.
func (o outgoing) unsized() {
	if o.ContentLength != 0 || len(o.Header["Content-Length"]) > 0 {
		return
	}
	switch o.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		o.Body, o.ContentLength, o.TransferEncoding = bodiless{}, -1, []string{"identity"}
	}
}

// bodiless is an empty body of a type that net/http does not know, so that it
// does not add Content-Length: 0.
type bodiless struct{}

func (bodiless) Read([]byte) (int, error) { return 0, io.EOF }
func (bodiless) Close() error             { return nil }

// plainHead is the start of a request that net/http cannot write: one of
// HTTP/1.0, or without a Host. net/http starts with the request line and Host.
type plainHead struct {
	ten, noHost bool
	lines       []byte // received part of the two lines
}

// writeHead replaces Write until the two lines are complete.
func (w *wire) writeHead(p []byte) (int, error) {
	h := w.head
	h.lines = append(h.lines, p...)
	line, rest, ok := bytes.Cut(h.lines, []byte("\r\n"))
	host, rest, both := bytes.Cut(rest, []byte("\r\n"))
	if !ok || !both {
		return len(p), nil
	}
	w.head = nil
	out := make([]byte, 0, len(h.lines))
	out = append(out, line...)
	if h.ten {
		out = append(bytes.TrimSuffix(out, []byte(proto11)), proto10...)
	}
	out = append(out, "\r\n"...)
	switch {
	case !h.noHost:
		out = append(append(out, host...), "\r\n"...)
	case !h.ten:
		out = append(out, "Host: \r\n"...) // HTTP/1.1 requires Host, also an empty one
	}
	if _, err := w.write(append(out, rest...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
