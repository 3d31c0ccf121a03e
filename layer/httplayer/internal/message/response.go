package message

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var (
	errHandlerDone = errors.New("write after the handler returned")
	errShortBody   = errors.New("the handler wrote less than its Content-Length")
)

// ResponseWriter is the [http.ResponseWriter] of a handler. It writes the response to a
// [Stream]. Like the response writer of net/http, it detects the content type, adds
// Content-Length to a short body, and sends trailers. The handler announces trailers by the
// Trailer field or by [http.TrailerPrefix].
type ResponseWriter struct {
	stream Stream
	head   bool // the method of the request is HEAD
	header http.Header

	status   int         // 0 before WriteHeader
	sent     http.Header // copy of header, made by the first call of Header after WriteHeader
	length   int64       // value of Content-Length; -1 if unknown
	written  int64
	first    *Buffer // buffered start of the body, until the response is started
	started  bool    // stream.WriteHeader was called
	hijacked bool
	err      error // error of the stream
	done     atomic.Bool
}

const firstSize = 4 << 10 // size of ResponseWriter.first

func (w *ResponseWriter) release() {
	w.first.Release()
	w.first = nil
}

// Header returns the header map of the response. Changes after WriteHeader affect only
// trailers. It is part of [http.ResponseWriter].
func (w *ResponseWriter) Header() http.Header {
	if w.status != 0 && !w.started && w.sent == nil {
		w.sent = w.header.Clone()
	}
	return w.header
}

// WriteHeader sets the status of the response. A 1xx status other than 101 sends an informational
// response and leaves the final status open. It is part of [http.ResponseWriter].
func (w *ResponseWriter) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("invalid status code " + strconv.Itoa(status))
	}
	switch {
	case w.hijacked || w.status != 0 || w.done.Load():
	case status < 200 && status != http.StatusSwitchingProtocols:
		_ = w.stream.Inform(status, w.header) // a failure is reported by Write
	default:
		w.status = status
		w.length = ContentLength(w.header["Content-Length"])
	}
}

// Write appends p to the body of the response. The first bytes are buffered until the
// content type and the length can be determined. It is part of [http.ResponseWriter].
func (w *ResponseWriter) Write(p []byte) (int, error) { return write(w, p) }

// WriteString appends s to the body of the response, as Write does. It is part of
// [io.StringWriter].
func (w *ResponseWriter) WriteString(s string) (int, error) { return write(w, s) }

func write[T string | []byte](w *ResponseWriter, p T) (int, error) {
	if err := w.admit(len(p)); err != nil {
		return 0, err
	}
	if !w.started && w.length < 0 {
		if w.first == nil {
			w.first = GetBuffer(firstSize)
		}
		if len(w.first.B)+len(p) <= firstSize {
			w.first.B = append(w.first.B, p...)
			return len(p), nil
		}
	}
	b := []byte(p)
	if !w.started {
		if err := w.start(b, false); err != nil {
			return 0, err
		}
	}
	if w.head {
		return len(p), nil
	}
	n, err := w.stream.Write(b)
	w.err = err
	return n, err
}

// admit checks whether n more bytes of the body may be written. If they may, it adds n to
// w.written. Otherwise it returns an error. If the handler has not set a status, admit sets
// it to 200.
func (w *ResponseWriter) admit(n int) error {
	if w.hijacked {
		return http.ErrHijacked
	}
	if w.done.Load() {
		return errHandlerDone
	}
	w.WriteHeader(http.StatusOK) // unless the handler has set a status
	if w.err != nil || n == 0 {
		return w.err
	}
	if !BodyAllowed(w.status) {
		return http.ErrBodyNotAllowed
	}
	if w.length >= 0 && w.written+int64(n) > w.length {
		return http.ErrContentLength
	}
	w.written += int64(n)
	return nil
}

// start sends the headers, followed by the bytes in w.first. If whole is true, the body ends after
// these bytes. Otherwise the argument next has the bytes that the caller writes after start. start
// uses them only to detect the content type.
func (w *ResponseWriter) start(next []byte, whole bool) error {
	w.started = true
	header := w.header
	if w.sent != nil {
		header = w.sent
	}
	var first []byte
	if w.first != nil {
		first = w.first.B
	}
	allowed := BodyAllowed(w.status)
	trailers := len(HandlerTrailer(w.header)) > 0 && allowed && !w.head
	_, set := header["Content-Length"] // a nil value suppresses it
	if w.length < 0 && !set && whole && allowed && !trailers && (!w.head || len(first) > 0) {
		w.length = w.written
	}
	if allowed {
		detect(header, first, next)
	}
	empty := whole && w.written == 0 && w.length <= 0 && !trailers
	w.err = w.stream.WriteHeader(w.status, header, w.length, !allowed || w.head || empty)
	if w.err == nil && len(first) > 0 && !w.head {
		_, w.err = w.stream.Write(first)
	}
	w.release()
	return w.err
}

// detect sets Content-Type from the first bytes of the body. These are the bytes in the argument
// first, followed by those in the argument next. It does not change a header that has Content-Type
// or Content-Encoding.
func detect(header http.Header, first, next []byte) {
	if _, ok := header["Content-Type"]; ok || len(first)+len(next) == 0 || header.Get("Content-Encoding") != "" {
		return
	}
	const sniffed = 512 // bytes that DetectContentType reads
	first = append(slices.Clip(first), next[:min(sniffed, len(next))]...)
	header["Content-Type"] = []string{http.DetectContentType(first)}
}

// HandlerTrailer returns the trailers that a handler has set in header. These are the fields that
// the field Trailer announces, and the fields with the prefix [http.TrailerPrefix]. An announced
// trailer may have no value. Without trailers the result is nil. A stream skips the fields with the
// prefix in header, because their names are invalid.
func HandlerTrailer(header http.Header) http.Header {
	found := Announced(header["Trailer"])
	for name := range found {
		found[name] = header[name]
	}
	for key, values := range header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			if found == nil {
				found = make(http.Header)
			}
			found[http.CanonicalHeaderKey(name)] = values
		}
	}
	return found
}

func (w *ResponseWriter) finish() error {
	if !w.started && w.err == nil {
		_ = w.start(nil, true)
	}
	if w.err != nil {
		return w.err
	}
	if w.length >= 0 && w.written != w.length && !w.head && BodyAllowed(w.status) {
		_ = w.stream.Flush() // the client receives the incomplete response
		return errShortBody
	}
	return w.stream.Finish(HandlerTrailer(w.header))
}

// Flush sends the headers and the buffered bytes of the body. It is part of [http.Flusher].
func (w *ResponseWriter) Flush() { _ = w.FlushError() }

// FlushError sends the headers and the buffered bytes of the body.
// [http.ResponseController] calls it.
func (w *ResponseWriter) FlushError() error {
	if err := w.admit(0); err != nil {
		return err
	}
	if !w.started {
		if err := w.start(nil, false); err != nil {
			return err
		}
	}
	w.err = w.stream.Flush()
	return w.err
}

// Hijack returns the connection, which the caller must close. It fails in HTTP/2. It is part
// of [http.Hijacker].
func (w *ResponseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.hijacked {
		return nil, nil, http.ErrHijacked
	}
	if w.done.Load() {
		return nil, nil, errHandlerDone
	}
	if w.status != 0 {
		if err := w.FlushError(); err != nil {
			return nil, nil, err
		}
	}
	conn, buffered, err := w.stream.Hijack()
	w.hijacked = err == nil
	return conn, buffered, err
}

// ReadFrom is part of [io.ReaderFrom]. It lets [io.Copy] use a pooled buffer.
func (w *ResponseWriter) ReadFrom(src io.Reader) (int64, error) { return Copy(w, src, nil) }

// SetReadDeadline sets the deadline for reading the request body. [http.ResponseController]
// calls it.
func (w *ResponseWriter) SetReadDeadline(t time.Time) error { return w.stream.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline for writing the response. [http.ResponseController]
// calls it.
func (w *ResponseWriter) SetWriteDeadline(t time.Time) error { return w.stream.SetWriteDeadline(t) }

// EnableFullDuplex does nothing, because responses are always full duplex.
func (*ResponseWriter) EnableFullDuplex() error { return nil }
