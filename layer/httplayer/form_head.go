package httplayer

import (
	"bytes"
	"io"
	"net/http"
)

// inForm has net/http write the request as it came: in its form, and without a
// length of 0 that nobody said. w is the connection that it will take.
func (o outgoing) inForm(f form, req *http.Request, w *wire) {
	if req.ProtoMajor >= 2 && len(o.Header[origProtoField]) > 0 {
		// Meant for HTTP/2, which the endpoint turned out not to speak.
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

// unsized keeps net/http from saying of methods that usually have a body that
// there is none, where the client did not.
func (o outgoing) unsized() {
	if o.ContentLength != 0 || len(o.Header["Content-Length"]) > 0 {
		return
	}
	switch o.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		o.Body, o.ContentLength, o.TransferEncoding = bodiless{}, -1, []string{"identity"}
	}
}

// bodiless is a body that net/http does not know to be empty: of one that it
// does, it says so, to endpoints that were not told by the client.
type bodiless struct{}

func (bodiless) Read([]byte) (int, error) { return 0, io.EOF }
func (bodiless) Close() error             { return nil }

// plainHead is the beginning of a request that net/http cannot write: one of
// HTTP/1.0, or without a Host. net/http begins with two lines, the request's
// and Host.
type plainHead struct {
	ten, noHost bool
	lines       []byte // what came of the two
}

// writeHead is Write until the two lines have come.
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
		out = append(out, "Host: \r\n"...) // HTTP/1.1 has to have one, be it empty
	}
	if _, err := w.write(append(out, rest...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
