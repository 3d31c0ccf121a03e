package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// maxResponseHeader is the maximum size of the response headers, including its 1xx responses, in
// bytes.
const maxResponseHeader = 1 << 20

// ClientConn is a connection to a server. It carries one request at a time, and must not be used for
// the next one before released was called, which tells the pool that the request and its response have
// ended.
type ClientConn struct {
	source
	head    head
	out     writer
	used    bool          // the connection was idle, so the server may have closed it
	idled   bool          // used was true before the current request
	busy    atomic.Bool   // an exchange is in progress
	trace   message.Trace // hooks of the current request
	started bool          // a byte of the response has arrived

	released func(c *ClientConn, reusable bool)
	sock     socket

	cause     atomic.Pointer[error] // reason for which the connection was closed; nil while it is open
	watch     reqctx.Registration
	received  *request // the received request that the current one forwards; may be nil
	keepAlive bool     // the current request and its response permit another request
	sender    *sender
}

// NewClientConn returns a client connection on conn. released is called once for each Call, when the
// request and its response have ended, which may be before Call returns. If reusable is false, the
// connection cannot be used again, and the ClientConn closes it.
func NewClientConn(conn net.Conn, released func(c *ClientConn, reusable bool)) *ClientConn {
	c := &ClientConn{released: released}
	c.conn, c.failed = conn, c.readError
	c.out.conn = conn
	c.sock.init(conn)
	return c
}

// NetConn returns the connection to the server.
func (c *ClientConn) NetConn() net.Conn { return c.conn }

// Trace sets the hooks of the next RoundTrip.
func (c *ClientConn) Trace(t message.Trace) { c.trace, c.started = t, false }

var (
	errClosed       = errors.New("connection closed")
	errServerClosed = fmt.Errorf("the server has closed the connection without a response: %w", io.EOF) // as in net/http
	errEarlySwitch  = errors.New("switching protocols before the end of the request body")
)

// Rest is called when the connection becomes idle. From then on, the next request first checks whether
// the server has closed the connection. Before the first request there is no such check for TLS,
// because the unread bytes may belong to the handshake.
func (c *ClientConn) Rest() {
	c.used = c.used || c.sock.canExchange() || !c.sock.exists()
	if c.used && c.idle == nil && !c.sock.exists() { // it is not possible to look at the socket
		c.idle = startIdleRead(c.conn)
	}
}

// readable reports whether something has arrived on the idle connection: bytes, the end of the stream
// or an error. A server sends nothing without a request, except that it closes the connection. Therefore
// the connection cannot be used for another request.
func (c *ClientConn) readable() bool {
	return c.idle != nil && c.idle.ended() || c.sock.readable()
}

// Close closes the connection and ends the exchange in progress with an error.
func (c *ClientConn) Close() error {
	c.fail(errClosed)
	return nil
}

// fail closes the connection because of cause. Only the first call counts.
func (c *ClientConn) fail(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		_ = c.conn.Close()
	}
}

// ContextDone implements [reqctx.Watcher]: the context of the request in progress has ended. It closes
// the connection on a new goroutine, because closing a TLS connection may block.
func (c *ClientConn) ContextDone(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		go c.conn.Close()
		c.release(false) // not reusable
	}
}

// release gives the connection back to the pool by a call of c.released. Only the first call for a
// request counts.
func (c *ClientConn) release(reusable bool) {
	if c.busy.CompareAndSwap(true, false) {
		if reusable {
			c.Rest()
		}
		c.released(c, reusable)
	}
}

// readError returns the error to report for a read that failed with err: the cause if this side
// has closed the connection, and otherwise err.
func (c *ClientConn) readError(err error) error {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return err
}

// Call sends a request and returns its response. It uses ctx instead of the context of req, so that
// the caller needs no copy of req. It closes the request body, unless the error is
// [message.ErrNotSent]. If the response accepts an upgrade or CONNECT, its body is an
// [io.ReadWriteCloser] with CloseWrite.
func (c *ClientConn) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	c.busy.Store(true)
	length := lengthOfRequest(req)
	// A request without a body is checked by exchange, which saves a system call here.
	if c.cause.Load() != nil || c.used && (length != 0 || !c.sock.canExchange()) && c.readable() { // exchange checks it, too
		return nil, c.failRoundTrip(fmt.Errorf("%w: the server has closed the idle connection", message.ErrNotSent))
	}
	c.out.begin()
	c.received = receivedRequest(ctx)
	b, err := appendRequest(c.out.b, req, length, c.received.order())
	c.out.b = b
	if reqctx.Ended(ctx) {
		err = context.Cause(ctx)
	}
	// Nothing was sent, so the connection stays usable.
	if err != nil {
		c.out.end()
		message.CloseBody(req)
		c.release(true) // reusable
		return nil, err
	}
	c.keepAlive = !closesAfter(req)
	c.idled = c.used
	// From here on, the end of ctx closes the connection; see ContextDone.
	c.watch = reqctx.Watch(ctx, c)
	err = c.send(req, length)
	c.used = true
	if err != nil {
		return nil, c.failRoundTrip(err)
	}
	n, err := c.receive(ctx, req)
	if err != nil || c.cause.Load() != nil { // a server may answer because this side closes
		return nil, c.failRoundTrip(err)
	}
	rsp := c.newResponse(req, n)
	if err := malformedStart(rsp.Body); err != nil { // the end of the body has closed the connection
		return nil, err
	}
	return rsp, nil
}

// malformedStart returns an error if the part of a chunked body that has arrived with the headers is
// malformed. The caller can then still answer with a 502 instead of breaking off a response.
func malformedStart(b io.Reader) error { // other bodies cannot be malformed
	chunked, ok := b.(*body)
	if !ok || chunked.framing != byChunks {
		return nil
	}
	if _, eof := chunked.Pending(); eof { // parses the first chunk line, if it has arrived
		return nil
	}
	chunked.mu.Lock()
	defer chunked.mu.Unlock()
	return chunked.err
}

// failRoundTrip closes the connection after a Call that failed with err before its response. It returns
// the error for the caller. An err that matches [message.ErrNotSent] stays as it is, because the caller
// may then send the request, whose body is not closed, on another connection. For other errors see
// readError.
func (c *ClientConn) failRoundTrip(err error) error {
	if !errors.Is(err, message.ErrNotSent) {
		err = c.readError(err)
	}
	c.watch.Stop()
	c.fail(err)
	c.stopSender()
	c.drop()
	c.release(false) // not reusable
	return err
}

// send sends req's headers, which are in c.out, and as much of its body as can be read without waiting.
// If that is not the whole body, it starts a goroutine, the sender, for the rest, so that a response can
// be received meanwhile. If the body waits for 100 Continue, the sender sends all of it. length is the
// result of lengthOfRequest. After an error, the body is closed, unless the error matches
// [message.ErrNotSent].
func (c *ClientConn) send(req *http.Request, length int64) error {
	out := &c.out
	out.chunked, out.remaining = length < 0, length
	whole := length == 0
	if !whole && !message.ExpectsContinue(req.Header) {
		var err error
		if whole, err = out.copyBody(req.Body, false); err != nil { // without waiting
			return c.sent(req, err)
		}
	}
	switch {
	case whole && c.used && c.trace.IsZero() && c.sock.canExchange(): // a new connection may have a response, for which exchange would wait
		return c.sent(req, c.exchange(req))
	case whole:
		err := out.finish(req.Trailer)
		if err == nil {
			c.trace.WroteHeaders()
		}
		c.trace.WroteRequest(err)
		return c.sent(req, err)
	}
	if err := out.flush(); err != nil {
		c.trace.WroteRequest(err)
		return c.sent(req, err)
	}
	c.trace.WroteHeaders()
	c.startSender(req)
	return nil
}

// exchange sends req, which is completely in the buffer, and waits for the first bytes of the response
// in the same system calls: see socket.exchange. It returns an error if sending failed. If the read
// fails, its error is not returned, but stored for the next read.
func (c *ClientConn) exchange(req *http.Request) error {
	out := &c.out
	if err := out.complete(req.Trailer); err != nil {
		return err
	}
	// Only if everything was written does socket.exchange empty out.buf; err is then that of the read.
	switch err := c.sock.exchange(out, &c.source); {
	case out.buf == nil:
		c.err = err
		return nil
	case err == nil: // a short write
		return out.flush()
	default:
		// Nothing was written, because the server has closed the connection or it has failed.
		out.broken = true
		out.err = err
		return err
	}
}

// sent ends the sending of req. err is nil, or the error with which sending failed. sent returns the
// error for the caller: one that matches [message.ErrNotSent] if the connection failed before it
// accepted a byte of req, so that it is safe to send req on another connection. In any other case, sent
// closes the request body.
func (c *ClientConn) sent(req *http.Request, err error) error {
	out := &c.out
	out.end()
	if err != nil && out.broken && !out.sent {
		return fmt.Errorf("%w: %w", message.ErrNotSent, err)
	}
	message.CloseBody(req)
	if out.broken {
		err = c.unanswered(err)
	}
	return err
}

// unanswered returns the error for a request that got no byte of a response because of err. It matches
// [message.ErrNoResponse] if the connection was idle before: then the server has most likely closed it
// at the same time, and the caller may send an idempotent request again.
func (c *ClientConn) unanswered(err error) error {
	if !c.idled {
		return err
	}
	return fmt.Errorf("%w: %w", message.ErrNoResponse, err)
}

// receive reads the headers of the final response and returns their length. It forwards the 1xx
// responses before it with [message.Inform]. All these headers together are limited in size.
func (c *ClientConn) receive(ctx context.Context, req *http.Request) (int, error) {
	limit := maxResponseHeader
	for {
		n, err := c.readHeaders(limit)
		switch {
		// No byte of any response has arrived.
		case err != nil && c.buffered() == 0 && limit == maxResponseHeader:
			return 0, c.unanswered(err)
		case err != nil:
			return 0, err
		}
		status := c.head.status
		if req.Method != http.MethodConnect || status/100 != 2 { // a tunnel has no framing (RFC 9110, section 9.3.6)
			if err := c.head.checkResponse(); err != nil {
				return 0, err
			}
		}
		switches := status == http.StatusSwitchingProtocols
		switch {
		case switches && message.Upgrade(req.Header) == "":
			return 0, errors.New("switching protocols without an upgrade")
		case switches && !c.finished():
			return 0, errEarlySwitch
		case switches || status >= http.StatusOK:
			return n, nil
		}
		// This was a 1xx response, and another response follows.
		limit -= n
		if status == http.StatusContinue {
			c.trace.Got100Continue()
			if c.sender != nil {
				c.sender.expects.Decide(true) // send the body
			}
		}
		header, _ := c.head.header(string(c.unread()[:n]), nil)
		c.r += n
		message.RemoveHopByHop(header)
		if err := message.Inform(ctx, status, header); err != nil {
			return 0, err
		}
	}
}

// readHeaders reads until the buffer holds complete headers, parses them into c.head, and returns
// their length. It fails if they are longer than limit. It drops empty lines before the response.
func (c *ClientConn) readHeaders(limit int) (int, error) {
	h := &c.head
	h.reset()
	for {
		// No part of the response was parsed yet, so empty lines may come first.
		if h.next == 0 {
			empty := emptyLines(c.unread())
			c.r += empty
			limit -= empty
		}
		if !c.started && c.buffered() > 0 {
			c.started = true
			c.trace.GotFirstResponseByte()
		}
		n, err := h.parseResponse(c.unread())
		switch {
		case err == errStatusLine: //nolint:errorlint // parseResponse returns it
			return 0, malformed("the answer is not HTTP: it begins with " + message.Start(c.unread()))
		case err != nil:
			return 0, err
		case n > limit || limit < 0:
			return 0, errTooLarge
		case n > 0:
			return n, nil
		}
		partial := c.buffered() > 0
		if _, err := c.fill(limit); err != nil {
			if err == io.EOF && !partial { //nolint:errorlint // a connection returns it unwrapped
				return 0, errServerClosed
			}
			// The peer may speak another protocol, so the error shows how its answer begins.
			if partial && h.stage != inFields {
				return 0, fmt.Errorf("%w after %s", noEOF(err), message.Start(c.unread()))
			}
			return 0, noEOF(err)
		}
	}
}

// response holds a response, its body and the values of its header, so that all three need only one
// allocation.
type response struct {
	http.Response
	body    body
	values  [8]string
	arrived order // of the header
}

// newResponse builds the response from the parsed headers, which are the first n unread
// bytes.
func (c *ClientConn) newResponse(req *http.Request, n int) *http.Response {
	h := &c.head
	text := string(c.unread()[:n])
	c.r += n
	r := new(response)
	rsp := &r.Response
	rsp.Status, rsp.StatusCode = h.target.text(text), h.status
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = protos[h.minor], 1, h.minor
	rsp.Request = req
	rsp.Header, r.arrived = h.header(text, r.values[:0])
	// Tells the server side of a proxy in which order to forward the fields.
	if c.received != nil {
		c.received.answered.Store(&r.arrived)
		c.received = nil
	}
	if rsp.ContentLength = h.length; h.chunked { // both fields were sent; see checkResponse
		delete(rsp.Header, "Content-Length") // see checkResponse
	}
	rsp.Close = !h.persists()
	// An HTTP/1.0 request was sent as such, and the connection then stays open only if the server says so.
	c.keepAlive = c.keepAlive && !rsp.Close && (h.keeps || !isOld(req))
	if c.sender != nil {
		c.sender.expects.Decide(false) // unless it is decided
	}
	// Deferred, because init reads the field Trailer.
	if h.hop {
		defer message.RemoveHopByHop(rsp.Header)
	}
	switch {
	case h.status == http.StatusSwitchingProtocols, req.Method == http.MethodConnect && h.status/100 == 2:
		rsp.ContentLength = -1
		delete(rsp.Header, "Content-Length")
		rsp.Body = tunnelEnd{&c.source, c.endTunnel}
		// A tunnel may be silent for long, so it holds no buffer unless bytes have arrived already.
		c.source.release()
	case req.Method == http.MethodHead || !message.BodyAllowed(h.status) || h.length == 0:
		if h.status == http.StatusNoContent {
			rsp.ContentLength = 0
		}
		rsp.Body = http.NoBody
		c.bodyEnded(true) // whole
	default:
		b := &r.body
		b.init(&c.source, c, h, rsp.Header)
		rsp.Body, rsp.Trailer = b, b.trailer
		if h.chunked {
			rsp.TransferEncoding = chunkedCoding
		}
		if b.framing == byClose {
			rsp.Close = true
			c.keepAlive = false
		}
	}
	return rsp
}

// interrupt closes the connection, which ends a Read in progress. It is part of bodyOwner.
func (c *ClientConn) interrupt() { c.fail(http.ErrBodyReadAfterClose) }

// bodyEnded implements bodyOwner. It gives the connection back for the next request, or closes it.
// whole is true if the response was read completely. The connection is reused if whole is true, the
// request was sent completely, both messages permit another one, and no further bytes have arrived.
func (c *ClientConn) bodyEnded(whole bool) {
	reusable := whole && c.keepAlive && c.buffered() == 0 && c.finished()
	if !c.watch.IsZero() && !c.watch.Stop() {
		reusable = false // the context has ended, and ContextDone closes the connection
	}
	c.watch = reqctx.Registration{}
	if !reusable {
		c.fail(errClosed)
		c.stopSender()
	}
	c.drop()
	c.release(reusable && c.cause.Load() == nil)
}

// endTunnel closes a connection that has become a tunnel. It is the Close of the tunnel's body.
func (c *ClientConn) endTunnel() {
	c.watch.Stop()
	c.fail(errClosed)
	c.release(false) // not reusable
}
