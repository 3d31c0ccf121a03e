package message

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
)

// Handle runs the handler of s for req on its own goroutine, with a context that ends with ctx and carries s
// as its http.ServerContextKey. It returns the response when the handler sends its headers or returns.
// A Read of the response body waits until the handler writes, and the handler's writes wait until the
// body is read, except for the last 4 KiB. The body ends when the handler has returned. Closing it
// earlier ends the handler context, and makes its reads and writes fail. But if the handler has written
// the whole response, Close waits for the handler, so that it can end its work.
//
// If ctx ends before the response, Handle returns the cause. If the handler panics before the response,
// Handle panics with the same value. A later panic is the body's error.
func Handle(ctx context.Context, s *http.Server, req *http.Request) (*http.Response, error) {
	x := &handled{req: req, server: s, header: make(http.Header), length: -1}
	x.moved.L = &x.mu
	x.Init(ctx, 0, nil) // no time limit
	// The end of ctx calls ContextDone, which ends the response.
	x.watch = reqctx.Watch(&x.Context, x)
	x.received = x.toReceive()
	go x.run()
	return x.response()
}

// handled is a single handler call, with its context. It is also the handler's
// [http.ResponseWriter]; see handler_writer.go.
type handled struct {
	reqctx.Context
	req    *http.Request
	server *http.Server // value of http.ServerContextKey, without which httputil.ReverseProxy aborts no response
	body   *timedBody   // of the request; nil without one
	watch  reqctx.Registration

	// The next fields are used by the handler only.

	received *http.Request // the request of the handler
	header   http.Header
	sent     http.Header // copy of header, made by the first call of Header after WriteHeader
	status   int         // 0 before WriteHeader
	length   int64       // value of Content-Length; -1 if unknown
	written  int64
	buf      *Buffer // written bytes of the body that are not in next; may be nil

	mu         sync.Mutex
	moved      sync.Cond       // signals changes of the fields below
	rsp        *http.Response  // nil until its headers are sent
	tunnel     *hijackedTunnel // nil unless the handler has hijacked the connection
	next       []byte          // bytes that the reader of the body gets next
	trailer    http.Header     // values of trailers that were not known when the headers were sent
	whole      bool            // the handler has written the whole response
	returned   bool            // the handler has returned
	err        error           // the error of the body after next, if returned is true; nil means io.EOF
	abortErr   error           // the response is not wanted or failed; result of further writes
	writeTimer *time.Timer
}

// abortedError is the error in a response that its handler has aborted.
type abortedError struct{ err error }

func (e *abortedError) Error() string { return "the handler aborted the response: " + e.err.Error() }
func (e *abortedError) Unwrap() error { return e.err }

// ResetCode returns the HTTP/2 error code, for package tap.
func (*abortedError) ResetCode() uint32 { return CodeInternal }

var errClosedResponse = errors.New("the response is closed")

func (x *handled) Value(key any) any {
	if key == http.ServerContextKey {
		return x.server
	}
	return x.Context.Value(key)
}

// toReceive returns the request that the handler receives: a copy of x.req with the handler's
// context, and with the fields as net/http's server sets them. It sets x.body if there is a body.
func (x *handled) toReceive() *http.Request {
	received := x.req.WithContext(x)
	if received.Body == nil {
		received.Body = http.NoBody
	}
	if received.Body != http.NoBody {
		x.body = &timedBody{ReadCloser: received.Body}
		received.Body = x.body
	}
	received.Host = cmp.Or(received.Host, received.URL.Host)
	received.RequestURI = cmp.Or(received.RequestURI, received.URL.RequestURI())
	// As in net/http's server, the URL of a request for a path has no scheme and no host.
	if received.RequestURI[0] == '/' && (received.URL.Host != "" || received.URL.Scheme != "") {
		u := *received.URL
		u.Scheme, u.Host, received.URL = "", "", &u
	}
	return received
}

// run calls the handler, and completes the response when it returns or panics. It is the goroutine's
// function.
func (x *handled) run() {
	err := panics.ErrExited
	defer func() {
		if x.received.MultipartForm != nil {
			_ = x.received.MultipartForm.RemoveAll() // the files of an upload
		}
		x.closeRequest()
		if !x.end(err) {
			x.Cancel(nil)
		}
		// Still the value of err if the handler calls runtime.Goexit.
	}()
	err = panics.Contain(func() { x.server.Handler.ServeHTTP(x, x.received) })
}

// closeRequest closes the request body.
func (x *handled) closeRequest() {
	if x.body != nil {
		_ = panics.Contain(func() { _ = x.body.Close() })
	}
}

// end completes the response after the handler has returned. err is nil, or says why the handler
// failed. end reports whether the handler has hijacked the connection, whose user may still need the
// request context.
func (x *handled) end(err error) (hijacked bool) {
	hijacked = x.tunnel != nil
	switch {
	case !hijacked:
		if !x.watch.Stop() { // the context has ended, and ContextDone may be called later
			cause := x.Cause()
			x.fail(cause)
			err = cmp.Or(err, cause)
		}
		if err == nil {
			err = x.finish()
		}
	// After a hijack, the connection belongs to the handler's user, unless the handler has failed.
	case err != nil:
		_ = x.tunnel.Close()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.returned = true; err != nil {
		x.err = &abortedError{err}
	}
	// No deadline of the handler applies any more.
	setTimer(&x.writeTimer, time.Time{}, nil)
	if x.body != nil {
		setTimer(&x.body.timer, time.Time{}, nil)
	}
	// Nobody will read the rest of the body, so its buffer is free.
	if x.abortErr != nil || x.rsp == nil {
		x.release()
	}
	x.moved.Broadcast()
	return hijacked
}

// release returns the buffer to its pool. The caller holds mu, or the handler has returned.
func (x *handled) release() {
	x.next = nil
	x.buf.Release()
	x.buf = nil
}

// response waits for the response headers, until the handler or its context ends.
func (x *handled) response() (*http.Response, error) {
	x.mu.Lock()
	for x.rsp == nil && x.tunnel == nil && !x.returned && x.abortErr == nil {
		x.moved.Wait()
	}
	rsp := x.rsp
	tunnel := x.tunnel
	err := x.err
	abortErr := x.abortErr
	x.mu.Unlock()
	// The headers count even if the handler has failed after sending them.
	switch p, panicked := errors.AsType[*panics.Error](err); {
	case rsp != nil:
		return rsp, nil
	case tunnel != nil:
		return tunnel.readResponse()
	case panicked && p.Value == http.ErrAbortHandler: //nolint:errorlint // net/http compares it, too
		panic(http.ErrAbortHandler)
	case panicked:
		panic(p)
	// The handler has returned without a response.
	case abortErr == nil:
		return nil, err
	}
	// The response was aborted before its headers: the context has ended, or a write deadline has passed. The handler
	// may still run, so its Reads of the request must end.
	x.closeRequest()
	return nil, abortErr
}

// ContextDone implements [reqctx.Watcher]. It makes the handler's writes fail.
func (x *handled) ContextDone(cause error) { x.fail(cause) }

// fail ends the response with err: the handler's writes and the reader of the body get it. It does
// nothing after the handler has returned.
func (x *handled) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.abortErr == nil && !x.returned {
		x.abortErr = err
		x.moved.Broadcast()
	}
	if x.tunnel != nil {
		_ = x.tunnel.hijackedConn.Close()
	}
}

// deliver hands p to the reader of the response body, and waits until all of p has been read. The
// handler and the reader so share p without a copy. It returns an error if the response is aborted.
func (x *handled) deliver(p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.abortErr == nil && len(p) > 0 {
		x.next = p
		x.moved.Broadcast()
	}
	x.whole = x.length >= 0 && x.written == x.length // the reader can then finish before the handler returns
	for x.abortErr == nil && len(x.next) > 0 {
		x.moved.Wait()
	}
	x.next = nil
	return x.abortErr
}

// handledBody is the body of a handler's response.
type handledBody struct{ x *handled }

// Read implements [io.Reader]. It waits until the handler has written something or has returned.
func (b handledBody) Read(p []byte) (n int, err error) {
	x := b.x
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.next) == 0 && !x.returned && x.abortErr == nil && len(p) > 0 {
		x.moved.Wait()
	}
	switch {
	case x.abortErr != nil:
		return 0, x.abortErr
	case len(x.next) > 0:
		n = copy(p, x.next)
		if x.next = x.next[n:]; len(x.next) == 0 {
			x.moved.Broadcast()
		}
	}
	if len(x.next) > 0 || !x.returned {
		return n, nil
	}
	// All bytes were read and the handler has returned, so its trailers are complete.
	x.release()
	maps.Copy(x.rsp.Trailer, x.trailer)
	return n, cmp.Or(x.err, io.EOF)
}

// Pending returns the number of bytes that can be read without waiting. If eof is true, the body ends
// after them.
func (b handledBody) Pending() (n int, eof bool) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	return len(b.x.next), b.x.returned && b.x.err == nil && b.x.abortErr == nil
}

// Close ends the response, and makes the handler's writes fail if it is not complete: see [Handle].
func (b handledBody) Close() error {
	x := b.x
	x.mu.Lock()
	// The handler has written everything, but has not returned. Let it finish, instead of canceling its
	// context.
	for x.whole && len(x.next) == 0 && !x.returned && x.abortErr == nil {
		x.moved.Wait()
	}
	if x.abortErr == nil {
		x.abortErr = errClosedResponse
	}
	returned := x.returned
	if returned { // nothing uses the buffer any more
		x.release()
	}
	x.moved.Broadcast()
	x.mu.Unlock()
	if !returned {
		x.Cancel(nil)
		x.closeRequest()
	}
	return nil
}
