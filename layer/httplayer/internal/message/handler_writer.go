package message

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// This file contains a handler's [http.ResponseWriter], which is a handled. Like that of net/http, it
// detects the content type, adds Content-Length to a short body, and sends trailers. The handler
// announces trailers with the Trailer field or with [http.TrailerPrefix].

const firstSize = 4 << 10 // largest number of buffered bytes of the body

var errHandlerDone = errors.New("write after the handler returned")

// Header returns the header map of the response. Changes after WriteHeader affect only trailers. Header
// implements [http.ResponseWriter].
func (x *handled) Header() http.Header {
	if x.status != 0 && !x.started() && x.sent == nil {
		x.sent = x.header.Clone()
	}
	return x.header
}

// started reports whether the response headers were sent.
func (x *handled) started() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rsp != nil
}

// WriteHeader sets the response status. A 1xx status other than 101 sends an informational
// response and leaves the final status open. WriteHeader implements [http.ResponseWriter].
func (x *handled) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("invalid status code " + strconv.Itoa(status))
	}
	switch {
	case x.status != 0 || x.failure() != nil:
	case status < 200 && status != http.StatusSwitchingProtocols:
		_ = Inform(x, status, x.header) // a failure is reported by Write
	default:
		x.status = status
		x.length = ContentLength(x.header["Content-Length"])
	}
}

// failure returns the error of further writes, or nil.
func (x *handled) failure() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	// If several apply, the caller gets the first: after a hijack, it must use the connection itself.
	switch {
	case x.tunnel != nil:
		return http.ErrHijacked
	case x.returned:
		return errHandlerDone
	}
	return x.abortErr
}

// Write appends p to the response body. The first bytes are buffered until the content type and
// the length can be determined. Write implements [http.ResponseWriter].
func (x *handled) Write(p []byte) (int, error) { return write(x, p) }

// WriteString appends s to the response body, as Write does. It implements [io.StringWriter].
func (x *handled) WriteString(s string) (int, error) { return write(x, s) }

// write implements the methods Write and WriteString of the ResponseWriter. Small writes are collected
// in a buffer.
func write[T string | []byte](x *handled, p T) (int, error) {
	if err := x.admit(len(p)); err != nil || len(p) == 0 {
		return 0, err
	}
	if x.buf == nil {
		x.buf = GetBuffer(firstSize)
	}
	if len(x.buf.B)+len(p) <= firstSize {
		x.buf.B = append(x.buf.B, p...)
		return len(p), nil
	}
	// The buffer is full. Send it, and let p follow: a short p waits in the buffer, and a long one is
	// sent now.
	b := []byte(p)
	if err := x.flush(b); err != nil {
		return 0, err
	}
	if len(b) < firstSize {
		x.buf.B = append(x.buf.B, b...)
		return len(b), nil
	}
	if !x.hasBody() { // a response to HEAD: the bytes are only counted
		return len(b), nil
	}
	if err := x.deliver(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// admit checks whether n more body bytes may be written, and adds them to x.written; otherwise it
// returns an error. If the handler has not set a status, admit sets it to 200.
func (x *handled) admit(n int) error {
	if err := x.failure(); err != nil {
		return err
	}
	x.WriteHeader(http.StatusOK) // unless the handler has set a status
	switch {
	case n == 0:
		return nil
	case !BodyAllowed(x.status):
		return http.ErrBodyNotAllowed
	case x.length >= 0 && x.written+int64(n) > x.length:
		return http.ErrContentLength
	}
	x.written += int64(n)
	return nil
}

// hasBody reports whether the bytes that the handler writes are sent, and not only counted, as for
// HEAD.
func (x *handled) hasBody() bool { return x.req.Method != http.MethodHead && BodyAllowed(x.status) }

// start makes the response, which [Handle] then returns. If whole is true, the handler has returned,
// and the buffered bytes are the whole body. Otherwise next holds the bytes that follow them, from
// which start detects the content type.
func (x *handled) start(next []byte, whole bool) {
	header := x.header
	if x.sent != nil {
		header = x.sent
	}
	if !whole {
		header = header.Clone() // the handler still runs, and may change its own header
	}
	trailer := handlerTrailer(x.header)
	for name := range trailer { // they are sent after the body
		delete(header, name)
		delete(header, http.TrailerPrefix+name)
	}
	delete(header, "Trailer")
	var first []byte
	if x.buf != nil {
		first = x.buf.B
	}
	allowed := BodyAllowed(x.status)
	body := x.hasBody()
	_, set := header["Content-Length"] // a nil value suppresses it
	// The length of a whole body is known, but HTTP/1.1 sends trailers only without Content-Length. In a
	// response to HEAD, the length is that of the bytes that the handler wrote. If it wrote none, it may
	// have skipped the body, and the length is unknown.
	if x.length < 0 && !set && whole && allowed && (body && len(trailer) == 0 || !body && len(first) > 0) {
		x.length = x.written
	}
	if allowed {
		detect(header, first, next)
	}
	switch {
	case x.length >= 0 && allowed:
		header["Content-Length"] = []string{strconv.FormatInt(x.length, 10)}
	case set && allowed:
		delete(header, "Content-Length")
	}
	if _, ok := header["Date"]; !ok {
		header["Date"] = []string{Date()}
	}
	rsp := x.newResponse(header, http.NoBody, x.length)
	// A whole response without bytes and trailers keeps http.NoBody, and so does one to HEAD.
	if !whole || body && (x.written > 0 || x.length > 0 || len(trailer) > 0) {
		rsp.Body = handledBody{x}
	}
	if rsp.Trailer = trailer; trailer == nil && !whole {
		rsp.Trailer = make(http.Header) // for those with TrailerPrefix
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rsp, x.whole = rsp, !body // without a body, the reader need not wait for the handler
	x.moved.Broadcast()
}

// newResponse returns the response that the handler has begun, for the caller of Handle.
func (x *handled) newResponse(header http.Header, body io.ReadCloser, length int64) *http.Response {
	if pattern := x.received.Pattern; pattern != "" { // a mux has set it
		layer.RecordFromContext(x).SetPattern(pattern)
	}
	return &http.Response{
		Status: StatusLines[x.status], StatusCode: x.status, Proto: x.req.Proto, ProtoMajor: x.req.ProtoMajor, ProtoMinor: x.req.ProtoMinor,
		Header: header, Body: body, ContentLength: length, Request: x.req,
	}
}

// detect sets Content-Type from the first bytes of the body, which are first, followed by next,
// unless the header already contains Content-Type or Content-Encoding.
func detect(header http.Header, first, next []byte) {
	if _, ok := header["Content-Type"]; ok || len(first)+len(next) == 0 || header.Get("Content-Encoding") != "" {
		return
	}
	const sniffed = 512 // bytes that DetectContentType reads
	first = append(slices.Clip(first), next[:min(sniffed, len(next))]...)
	header["Content-Type"] = []string{http.DetectContentType(first)}
}

// handlerTrailer returns the trailers in header, which the handler has announced in the Trailer field
// or given the prefix [http.TrailerPrefix]. An announced trailer may not have a value yet. The result
// is nil if there are none.
func handlerTrailer(header http.Header) http.Header {
	found := Announced(header["Trailer"])
	for name := range found {
		found[name] = header[name]
	}
	// A trailer with the prefix needs no announcement.
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

// finish completes the response after the handler has returned. The rest of the body stays in x.next
// until it is read. The returned error becomes that of the body: it is shorter than the handler
// announced.
func (x *handled) finish() error {
	if x.status == 0 && x.Err() != nil { // the handler gave up because its context has ended
		return x.Cause()
	}
	// The handler has returned without a response of its own: an empty 200, as in net/http's server.
	if x.status == 0 {
		x.status = http.StatusOK
		x.length = ContentLength(x.header["Content-Length"])
	}
	started := x.started()
	if !started {
		x.start(nil, true) // the buffer has the whole body
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.hasBody() {
		x.release()
		return nil
	}
	if x.buf != nil {
		x.next = x.buf.B
	}
	if started {
		x.trailer = handlerTrailer(x.header)
	}
	if x.length >= 0 && x.written != x.length {
		return ErrShortBody
	}
	return nil
}

// flush sends the headers, if they are not sent, and the buffered bytes of the body. It waits until
// these are read. next holds the bytes that will follow.
func (x *handled) flush(next []byte) error {
	if !x.started() {
		x.start(next, false) // more follows the buffer
	}
	if x.buf == nil {
		return nil
	}
	// The buffer counts as empty, but its bytes stay valid until deliver returns.
	b := x.buf.B
	x.buf.B = b[:0]
	if !x.hasBody() {
		return nil
	}
	return x.deliver(b)
}

// Flush sends the headers and the buffered bytes of the body. Flush implements [http.Flusher].
func (x *handled) Flush() { _ = x.FlushError() }

// FlushError sends the headers and the buffered bytes of the body.
// [http.ResponseController] calls it.
func (x *handled) FlushError() error {
	if err := x.admit(0); err != nil {
		return err
	}
	return x.flush(nil)
}

// ReadFrom implements [io.ReaderFrom]. It lets [io.Copy] use a pooled buffer.
func (x *handled) ReadFrom(src io.Reader) (int64, error) { return Copy(x, src, nil) }

// SetReadDeadline sets the time at which the request body is closed. Reads then fail with
// [os.ErrDeadlineExceeded]. A zero t means no deadline. [http.ResponseController] calls it.
func (x *handled) SetReadDeadline(t time.Time) error {
	if x.body == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// Closing the body ends a Read in progress, which then finds out by expired why.
	setTimer(&x.body.timer, t, func() {
		x.body.expired.Store(true)
		_ = x.body.ReadCloser.Close()
	})
	return nil
}

// SetWriteDeadline sets the time after which writes of the response fail with
// [os.ErrDeadlineExceeded]. A zero t means no deadline. [http.ResponseController] calls it.
func (x *handled) SetWriteDeadline(t time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	setTimer(&x.writeTimer, t, func() { x.fail(os.ErrDeadlineExceeded) })
	return nil
}

// setTimer arranges that expired is called at the time t. It replaces the timer that an earlier call
// has set, if there is one. A zero t only stops that timer.
func setTimer(timer **time.Timer, t time.Time, expired func()) {
	if *timer != nil {
		(*timer).Stop()
		*timer = nil
	}
	if !t.IsZero() {
		*timer = time.AfterFunc(time.Until(t), expired)
	}
}

// EnableFullDuplex does nothing, because responses are always full duplex.
func (*handled) EnableFullDuplex() error { return nil }

// timedBody is a request body with a read deadline, after which it is closed.
type timedBody struct {
	io.ReadCloser
	timer   *time.Timer
	expired atomic.Bool // the read deadline has passed and closed the body
}

// Read reads from the request body. If the read deadline has ended that, the error says so.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.expired.Load() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// Pending, Arrive and Proceed forward to the received body: see the functions of these names.
func (b *timedBody) Pending() (n int, eof bool) { return Pending(b.ReadCloser) }
func (b *timedBody) Arrive() bool               { return Arrive(b.ReadCloser) }
func (b *timedBody) Proceed()                   { Proceed(b.ReadCloser) }
