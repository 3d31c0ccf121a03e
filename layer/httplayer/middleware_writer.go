package httplayer

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
)

// serving returns the exchange of a request, and a writer for it that can do
// what w can: handlers find out by asserting interfaces. net/http has a writer
// for HTTP/1.1 and one for HTTP/2; of any other one they get what these share,
// and the rest by http.ResponseController.
func serving(w http.ResponseWriter, r *http.Request) (*served, http.ResponseWriter) {
	_, flushes := w.(http.Flusher)
	_, hijacks := w.(http.Hijacker)
	_, pushes := w.(http.Pusher)
	_, readsFrom := w.(io.ReaderFrom)
	_, notifies := w.(closeNotifier)
	h1 := hijacks && readsFrom
	switch {
	case !flushes:
		out := new(served)
		return out.serve(out, w, r)
	case h1 && notifies:
		out := new(servedByH1Notifying)
		return out.serve(out, w, r)
	case h1:
		out := new(servedByH1)
		return out.serve(out, w, r)
	case pushes && notifies:
		out := new(servedByH2Notifying)
		return out.serve(out, w, r)
	case pushes:
		out := new(servedByH2)
		return out.serve(out, w, r)
	case notifies:
		out := new(servedNotifying)
		return out.serve(out, w, r)
	}
	out := new(servedFlushing)
	return out.serve(out, w, r)
}

// serve begins an exchange whose handler writes to writer.
func (x *served) serve(writer, w http.ResponseWriter, r *http.Request) (*served, http.ResponseWriter) {
	x.Context, x.ResponseWriter, x.received, x.writer = r.Context(), w, r, writer
	return x, writer
}

// closeNotifier is http.CloseNotifier, which is deprecated. Frameworks assert it,
// and panic where it is not there.
type closeNotifier interface{ CloseNotify() <-chan bool }

// Unwrap is how http.ResponseController finds what else the writer can do.
func (x *served) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *served) WriteHeader(status int) {
	if x.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		x.status = status
		x.begin()
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *served) Write(p []byte) (int, error) {
	x.implicit()
	n, err := x.ResponseWriter.Write(p)
	x.data(int64(n), p[:max(n, 0)])
	return n, err
}

// WriteString keeps net/http's from making a copy of s.
func (x *served) WriteString(s string) (int, error) {
	x.implicit()
	n, err := io.WriteString(x.ResponseWriter, s)
	x.dataString(n, s)
	return n, err
}

// implicit notes the status of a response that begins without one.
func (x *served) implicit() {
	if x.status == 0 {
		x.status = http.StatusOK
		x.begin()
	}
}

// FlushError and Hijack are what http.ResponseController looks for before it
// unwraps.
func (x *served) FlushError() error {
	x.implicit()
	return http.NewResponseController(x.ResponseWriter).Flush()
}

func (x *served) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	x.hijacked = x.hijacked || err == nil
	return conn, rw, err
}

// servedFlushing is for a writer that can flush.
type servedFlushing struct{ served }

func (x *servedFlushing) Flush() { _ = x.FlushError() }

// servedByH1 is for net/http's writer of HTTP/1.1.
type servedByH1 struct{ servedFlushing }

func (x *servedByH1) Hijack() (net.Conn, *bufio.ReadWriter, error) { return x.hijack() }

// ReadFrom lets net/http send files without a copy.
func (x *servedByH1) ReadFrom(src io.Reader) (int64, error) {
	x.implicit()
	n, err := io.Copy(x.ResponseWriter, src)
	x.data(n, nil)
	return n, err
}

// servedByH2 is for net/http's writer of HTTP/2.
type servedByH2 struct{ servedFlushing }

func (x *servedByH2) Push(target string, opts *http.PushOptions) error {
	pusher, ok := x.ResponseWriter.(http.Pusher)
	if !ok {
		return http.ErrNotSupported
	}
	return pusher.Push(target, opts)
}

// The writers that tell when the client has gone.
type (
	servedNotifying     struct{ servedFlushing }
	servedByH1Notifying struct{ servedByH1 }
	servedByH2Notifying struct{ servedByH2 }
)

func (x *servedNotifying) CloseNotify() <-chan bool     { return x.closeNotify() }
func (x *servedByH1Notifying) CloseNotify() <-chan bool { return x.closeNotify() }
func (x *servedByH2Notifying) CloseNotify() <-chan bool { return x.closeNotify() }

func (x *served) closeNotify() <-chan bool {
	if w, ok := x.ResponseWriter.(closeNotifier); ok {
		return w.CloseNotify()
	}
	return nil // serving makes none of those then
}

// response is what the handler wrote, without its body.
func (x *served) response() *http.Response {
	r, header := x.received, x.Header()
	rsp := &http.Response{
		StatusCode: x.code(), Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: header, Body: http.NoBody, Request: r, Trailer: trailer(header),
	}
	rsp.Status = http.StatusText(rsp.StatusCode)
	return rsp
}

// code is the status that the client sees. What a handler writes on a connection
// that it hijacked passes by unseen, and is why it did.
func (x *served) code() int {
	switch {
	case x.status != 0:
		return x.status
	case x.hijacked && x.received.Method != http.MethodConnect:
		return http.StatusSwitchingProtocols
	}
	return http.StatusOK // of a tunnel, or what net/http is going to write
}

// trailer finds the trailers in the header of a handler that has returned:
// those that were announced, and those with net/http's prefix. Without any it
// is nil.
func trailer(header http.Header) http.Header {
	var found http.Header
	add := func(name string, values []string) {
		if found == nil {
			found = make(http.Header)
		}
		found[http.CanonicalHeaderKey(name)] = values
	}
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if values := header.Values(strings.TrimSpace(name)); len(values) > 0 {
				add(strings.TrimSpace(name), values)
			}
		}
	}
	for key, values := range header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	return found
}
