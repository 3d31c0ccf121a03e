package h1

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Phases of a server connection, which the sweeper checks against the time limits.
const (
	phaseSilent uint32 = iota + 1 // waiting for the first byte
	phaseHead                     // receiving headers
	phaseIdle                     // waiting for the next request, with a buffer
	phaseRest                     // waiting for the next request, with a buffer of one byte
	phaseServe                    // the exchange runs
	phaseTunnel                   // the connection is a tunnel
)

// LeastDrain is the minimum time, from the start of draining, for which a connection
// without a first byte stays open.
const LeastDrain = 100 * time.Millisecond

const (
	restAfter = 200 * time.Millisecond // an idle connection returns its buffer after this time
	drainTime = 10 * time.Second       // longest wait for the unread rest of a request body
	drainSize = 256 << 10              // largest unread rest of a request body that is discarded, in bytes
)

var (
	errHeaderTimeout = errors.New("timeout of the request headers")
	errWriteTimeout  = errors.New("timeout of writing the response")
	errPartHeaders   = errors.New("the client closed the connection within the headers of a request")
	errIdleClosed    = errors.New("idle connection closed")

	errClientLeft error = new(message.CanceledError)

	expiredTime = time.Unix(1, 0)
)

// PrefaceError reports that the client speaks HTTP/2. Ahead holds the bytes that were already read from
// the connection; they begin with the preface of HTTP/2.
type PrefaceError struct{ Ahead []byte }

// Error says that the client sent the preface of HTTP/2 on this HTTP/1.1 connection.
func (*PrefaceError) Error() string { return "the client speaks HTTP/2" }

// ServerConn is a connection from a client. It serves one request at a time, on the goroutine that
// calls Serve. The other methods may be called concurrently.
type ServerConn struct {
	source
	cfg    *message.ServerConfig
	ctx    context.Context //nolint:containedctx // the parent of the contexts of the requests
	base   context.Context //nolint:containedctx // ctx without its end; abort cancels requests
	remote string          // address of the client
	host   string          // host of the last request; "" in phaseRest
	slot   *sweep.Slot     // this connection's place in the sweeper
	head   head
	out    writer
	writes sweep.Wait     // measures how long each write of a response waits
	tiny   message.Buffer // one byte, the buffer in phaseRest

	current   atomic.Pointer[request]
	stop      atomic.Pointer[error] // reason for which reading ended; nil while it continues
	closeIdle atomic.Bool           // the connection closes when it is idle
	drained   time.Duration         // time since draining began; used by the sweeper only

	ahead      atomic.Uint32 // aheadNone, aheadAllowed or aheadRunning
	aheadDone  chan struct{}
	aheadSince time.Time // start of the read ahead in progress; used by its goroutine only

	mu     sync.Mutex
	readBy time.Time // read deadline, set to discard a body; guarded by mu
	passed bool      // the connection belongs to the caller of Serve; guarded by mu
}

// NewServerConn returns a server connection on conn. Request contexts carry the values from ctx.
// The connection ends when ctx ends. The sweeper in cfg must not be nil.
func NewServerConn(ctx context.Context, conn net.Conn, cfg *message.ServerConfig) *ServerConn {
	c := &ServerConn{cfg: cfg, ctx: ctx, base: reqctx.Detach(ctx), tiny: message.Buffer{B: make([]byte, 0, 1)}}
	c.conn, c.failed = conn, c.readError
	c.out.conn, c.out.wait = conn, &c.writes
	if addr := conn.RemoteAddr(); addr != nil {
		c.remote = addr.String()
	}
	return c
}

// Serve serves requests until the connection ends, and then closes it. The error is nil if
// the connection ended between requests. It is a [SyntaxError] after a malformed request. If
// the client speaks HTTP/2, it is a [PrefaceError], and the connection stays open. It is a
// [layer.Error] if the client sent nothing, or if its first request was not complete in
// time.
func (c *ServerConn) Serve() error {
	c.slot = c.cfg.Sweeper.Add(c, phaseSilent)
	watch := reqctx.Watch(c.ctx, c)
	defer watch.Stop()
	defer func() {
		c.slot.Remove()
		if r := c.current.Swap(nil); r != nil { // the exchange has ended its goroutine
			r.Cancel(nil)
		}
		if c.passed { // only Serve sets it
			return
		}
		c.conn.Close()
		c.stopReadAhead()
		c.drop()
	}()
	for first := true; ; first = false {
		n, err := c.readHeaders()
		if first && err == errVersion && bytes.HasPrefix(c.unread(), []byte("PRI * HTTP/2.0\r\n")) { //nolint:errorlint // not wrapped
			return c.pass()
		}
		if err != nil && first {
			err = c.noRequest(err)
		}
		if err != nil {
			return c.reject(err)
		}
		if keepAlive, err := c.serve(n); !keepAlive {
			return err
		}
		c.slot.Enter(phaseIdle)
		runtime.Gosched() // under load, the next request arrives meanwhile, which saves a failed read
	}
}

// pass hands the connection over to the caller of Serve, which serves HTTP/2 on it. It returns a
// [PrefaceError] with the bytes that were already read. From then on, the ServerConn neither sets
// deadlines nor closes the connection. If the connection was told to end meanwhile, pass returns the
// reason instead.
func (c *ServerConn) pass() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := c.stop.Load(); cause != nil {
		return *cause
	}
	ahead := bytes.Clone(c.unread())
	c.drop()
	c.passed = true
	// The HTTP/2 engine sets its own deadlines.
	_ = c.conn.SetDeadline(time.Time{})
	return &PrefaceError{ahead}
}

// noRequest returns Serve's error if reading has failed with err before the first request was
// complete: a [layer.Error] if no byte has arrived or the headers took too long, and otherwise
// err.
func (c *ServerConn) noRequest(err error) error {
	e := &layer.Error{Layer: "server", Reason: "no first byte", Err: noEOF(err)}
	silent := c.buffered() == 0
	switch timeout := err == errHeaderTimeout || err == errIdleClosed; { //nolint:errorlint // set by this package
	case timeout && !silent:
		e.Kind, e.Reason = layer.ErrTimeout, "no request"
	case timeout:
		e.Kind = layer.ErrTimeout
	case !silent:
		return err
	}
	return e
}

// drains reports whether the connection should close after its current request, because the server
// drains or CloseIdle was called.
func (c *ServerConn) drains() bool {
	return c.closeIdle.Load() || c.cfg.Draining != nil && c.cfg.Draining.Load()
}

// CloseIdle closes the connection immediately if it is idle. Otherwise the connection closes after
// its current request.
func (c *ServerConn) CloseIdle() {
	c.closeIdle.Store(true)
	c.interrupt()
}

// ContextDone implements [reqctx.Watcher]. It closes the connection on a new goroutine, because
// closing a TLS connection may block.
func (c *ServerConn) ContextDone(cause error) {
	c.abort(cause)
	go func() { _ = panics.Contain(func() { _ = c.conn.Close() }) }()
}

// abort makes all reads and writes fail, and cancels the context of the current request with cause. It
// does not close the connection, which Serve does.
func (c *ServerConn) abort(cause error) {
	c.stop.CompareAndSwap(nil, &cause)
	c.mu.Lock()
	// A deadline in the past makes the reads and writes in progress fail, and all later ones.
	if !c.passed {
		_ = c.conn.SetDeadline(expiredTime)
	}
	c.mu.Unlock()
	if r := c.current.Load(); r != nil {
		r.Cancel(cause)
	}
}

// stopReading makes the read in progress and all later ones fail with cause. The response can still be
// written.
func (c *ServerConn) stopReading(cause error) {
	c.stop.CompareAndSwap(nil, &cause)
	c.interrupt()
}

// interrupt makes the read in progress, or otherwise the next read, return errInterrupted.
func (c *ServerConn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.passed {
		_ = c.conn.SetReadDeadline(expiredTime)
	}
}

// setReadDeadline sets the time after which reads fail with os.ErrDeadlineExceeded. The zero time means
// never. An interruption also uses the connection's deadline, so readError sets this time again before
// the next read.
func (c *ServerConn) setReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.conn.SetReadDeadline(t)
}

// readError returns the error to report for a read that failed with err, the first that applies:
//
//   - If err is not a timeout, it is err. The request is also canceled, except in a tunnel and
//     if the client is half-closed.
//   - If stopReading or abort was called, it is the cause of that call.
//   - If the read deadline has passed, it is os.ErrDeadlineExceeded.
//   - Otherwise it is errInterrupted.
func (c *ServerConn) readError(err error) error {
	// An error that is not a timeout is one of the network. All timeouts come from deadlines that this
	// side set.
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		if r := c.current.Load(); r != nil && c.slot.Phase() != phaseTunnel && !c.halfClosed(err) {
			r.Cancel(errClientLeft)
		}
		return err
	}
	c.mu.Lock()
	deadline := c.readBy
	_ = c.conn.SetReadDeadline(deadline)
	c.mu.Unlock()
	// The deadline is restored before c.stop is read. In the reverse order, it could undo an
	// interruption that happens in between.
	switch cause := c.stop.Load(); {
	case cause != nil:
		_ = c.conn.SetReadDeadline(expiredTime)
		return *cause
	case !deadline.IsZero() && !time.Now().Before(deadline):
		return os.ErrDeadlineExceeded
	}
	return errInterrupted
}

// Sweep implements [sweep.Conn]. The sweeper calls it about every sweep.Interval with the connection's
// phase and the time it has been in it. Sweep enforces the time limit of the phase. rest is how long
// Sweep need not be called if nothing happens, or 0.
func (c *ServerConn) Sweep(phase uint32, age time.Duration) (rest time.Duration) {
	exceeded := func(age, limit time.Duration) bool { return limit > 0 && age > limit }
	drains := c.drains()
	if drains {
		limit := c.cfg.DrainTimeout
		if phase == phaseSilent {
			limit = max(limit, LeastDrain)
		}
		// Sweep is called about once in each Interval.
		if c.drained += sweep.Interval; c.drained > limit && !c.closeIdle.Load() {
			c.CloseIdle()
		}
	}
	switch phase {
	case phaseSilent, phaseHead:
		if exceeded(age, c.cfg.HeaderTimeout) {
			c.stopReading(errHeaderTimeout)
		}
	case phaseIdle:
		if exceeded(age, c.cfg.IdleTimeout) {
			c.CloseIdle()
		} else if age >= restAfter { // frees memory: the interrupted readHeaders returns the buffer
			c.interrupt()
		}
	case phaseRest:
		// The connection was idle for restAfter before this phase began.
		if exceeded(age+restAfter, c.cfg.IdleTimeout) {
			c.CloseIdle()
		} else if !drains {
			return sweep.Left(c.cfg.IdleTimeout, age+restAfter)
		}
	case phaseServe:
		r := c.current.Load()
		// The exchange has just ended.
		if r == nil {
			return 0
		}
		if b := r.body; b != nil && b.wait != nil && b.wait.TooSlow(c.cfg.BodyIdle, c.cfg.MinBodyRate) {
			// The read fails, and the handler's error becomes the response 408.
			c.stopReading(message.ErrSlowBody)
		}
		if exceeded(c.writes.Sweep(), c.cfg.WriteTimeout) {
			c.abort(errWriteTimeout)
		}
		if age > sweep.Interval { // at an age of one Interval, the phase may have just begun
			c.startReadAhead()
		}
	case phaseTunnel:
		return sweep.Forever
	}
	return 0
}

// readHeaders waits for the next request. It reads until the buffer holds the request's complete
// headers, parses them into c.head, and returns their length. It drops empty lines before the request.
// It also tells the sweeper whether the connection is idle or within a request.
func (c *ServerConn) readHeaders() (int, error) {
	limit := cmp.Or(c.cfg.MaxHeaderBytes, http.DefaultMaxHeaderBytes)
	h := &c.head
	h.reset()
	for {
		if h.next == 0 {
			c.r += emptyLines(c.unread())
		}
		n, err := h.parseRequest(c.unread())
		switch {
		case err != nil:
			return 0, err
		case n > limit:
			return 0, h.tooLarge()
		case n > 0:
			return n, nil
		}
		partial := c.buffered() > 0
		switch {
		case partial:
			if c.slot.Phase() != phaseHead {
				c.slot.Enter(phaseHead)
			}
		case c.closeIdle.Load():
			return 0, errIdleClosed
		case c.slot.Phase() == phaseHead: // it was an empty line
			c.slot.Enter(phaseIdle)
		}
		_, err = c.fill(limit)
		switch err {
		case errInterrupted: //nolint:errorlint // set by this package
			err = nil
			// A Sweep of an idle connection: continue with a buffer of one byte.
			if !partial && c.slot.Phase() == phaseIdle {
				c.release()
				c.buf, c.host = &c.tiny, ""
				h.fields = nil
				c.slot.Enter(phaseRest)
			}
		case errTooLarge:
			err = h.tooLarge()
		}
		if err != nil {
			if partial {
				// An end of the stream within a request is unexpected; between requests it is not.
				err = noEOF(err)
			}
			return 0, err
		}
	}
}

// tooLarge returns the error for headers that exceed the limit.
func (h *head) tooLarge() error {
	if h.stage != inFields {
		return errTooLong
	}
	return errTooLarge
}

// serve serves the request whose parsed headers are the first n unread bytes. It calls the handler, and
// returns when the response is sent and the request body has ended. It reports whether the connection
// can serve another request.
func (c *ServerConn) serve(n int) (keepAlive bool, err error) {
	r, req, err := c.newRequest(n)
	if err != nil {
		return false, c.reject(err)
	}
	c.slot.Enter(phaseServe)
	c.current.Store(r)
	// abort may have missed the request, because it was called before c.current was set.
	if cause := c.stop.Load(); cause != nil {
		r.Cancel(*cause)
	}
	if r.body == nil {
		c.ahead.Store(aheadAllowed) // the body is complete, so the next bytes belong to another request
	}
	err = message.Serve(c.cfg, r, req, r.reported)
	c.out.end()
	whole := c.endBody(r, err == nil)
	c.finish(r)
	// Without a pause, the client could lose the response, because it is still sending.
	if err == nil && !whole {
		c.linger()
	}
	return err == nil && whole && r.keepAlive && c.stop.Load() == nil, err
}

// endBody closes the request body, and reports whether all of it was read, so that the connection can
// serve another request. If drain is true, endBody first tries to read and drop the rest, up to
// drainSize bytes.
func (c *ServerConn) endBody(r *request, drain bool) bool {
	if r.body == nil {
		return true
	}
	r.body.end()
	if r.body.whole() {
		return true
	}
	if !drain || !r.keepAlive || c.stop.Load() != nil {
		return false
	}
	// The rest gets no more time than any pause of a body, so that a slow client does not hold the connection.
	_ = c.setReadDeadline(time.Now().Add(min(cmp.Or(c.cfg.BodyIdle, message.LingerTime), drainTime)))
	return r.body.discard(drainSize)
}

// finish ends the current request. It stops reading ahead, cancels the request context, and clears the
// read deadline that endBody may have set.
func (c *ServerConn) finish(r *request) {
	c.stopReadAhead()
	c.current.Store(nil)
	r.Release()
	if !c.readBy.IsZero() { // only this goroutine sets it
		_ = c.setReadDeadline(time.Time{})
	}
}

// bodyEnded implements bodyOwner. If whole is true, the body was read to its end, and bodyEnded
// allows readAhead to read bytes of the next request.
func (c *ServerConn) bodyEnded(whole bool) {
	if whole {
		c.ahead.CompareAndSwap(aheadNone, aheadAllowed)
	}
}

// reject handles the error err from reading a request, to which the unread bytes belong. It answers and
// reports a malformed request, and one that is incomplete when its time is over or the client has
// closed its sending half. It returns the error for Serve, which is nil if the connection ended between
// requests.
func (c *ServerConn) reject(err error) error {
	syntax, ok := errors.AsType[*SyntaxError](err)
	switch partial := c.buffered() > 0; {
	case ok:
		c.refuse(syntax.Status, syntax)
	case partial && errors.Is(err, errHeaderTimeout):
		c.refuse(http.StatusRequestTimeout, errHeaderTimeout)
	case partial && errors.Is(err, io.ErrUnexpectedEOF):
		c.refuse(http.StatusBadRequest, errPartHeaders)
	case err == io.EOF || err == errIdleClosed: //nolint:errorlint // set by readHeaders
		return nil
	}
	return err
}

// refuse reports the request that begins with the unread bytes as refused because of err, and answers
// it with status.
func (c *ServerConn) refuse(status int, err error) {
	method, target := message.StartLine(c.unread())
	refusal := message.Refusal{
		Client: c.remote, Status: status, Err: err, Proto: protos[c.head.minor], Method: method, Target: target,
		Host: string(c.head.host.bytes(c.unread())),
	}
	rsp := c.cfg.RefusalResponse(c.ctx, &refusal)
	b := appendHead(nil, statusLine(rsp), rsp.Header, "")
	if _, ok := rsp.Header["Date"]; !ok {
		b = appendField(b, "Date", message.Date())
	}
	var body []byte
	if message.BodyAllowed(rsp.StatusCode) {
		b = appendLength(b, rsp.ContentLength, nil)
		body, _ = io.ReadAll(rsp.Body) // in memory
	}
	b = append(b, "Connection: close\r\n\r\n"...)
	headers := len(b)
	// The connection may be broken or the client slow, so this last write gets a time limit.
	_ = c.conn.SetWriteDeadline(time.Now().Add(message.LingerTime))
	n, err := c.conn.Write(append(b, body...))
	c.cfg.Refuse(c.ctx, refusal, int64(max(0, n-headers)))
	if err == nil {
		c.linger()
	}
}

// linger closes the sending half of the connection and waits before Serve closes it, so that the client
// can read the last response: see [message.Linger]. A client may finish its upload, unless the server
// drains. A client that was too slow gets only a short time. After stopReading for another reason or abort,
// linger does nothing.
func (c *ServerConn) linger() {
	switch cause := c.stop.Load(); {
	case cause == nil && !c.drains():
		message.Linger(c.conn, message.UploadTime, math.MaxInt64)
	case cause == nil || *cause == message.ErrSlowBody || *cause == errHeaderTimeout: //nolint:errorlint // set by Sweep
		message.Linger(c.conn, message.LingerTime, math.MaxInt64)
	}
}
