package h1

import (
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
	phaseServe                    // the handler or the exchange runs
	phaseTunnel                   // the connection is a tunnel, or a handler has hijacked it
)

// LeastDrain is the minimum time, from the start of draining, for which a connection
// without a first byte stays open.
const LeastDrain = 100 * time.Millisecond

const (
	restAfter = 200 * time.Millisecond // an idle connection returns its buffer after this time
	drainSize = 256 << 10              // largest unread rest of a request body that is discarded, in bytes
)

var (
	errHeaderTimeout = errors.New("timeout of the request headers")
	errWriteTimeout  = errors.New("timeout of writing the response")
	errClientLeft    = errors.New("the client has closed the connection")
	errIdleClosed    = errors.New("idle connection closed")

	past = time.Unix(1, 0)
)

// PrefaceError reports that the client speaks HTTP/2. Ahead has the bytes that were read from the
// connection. They begin with the preface.
type PrefaceError struct{ Ahead []byte }

// Error is part of the error interface.
func (*PrefaceError) Error() string { return "the client speaks HTTP/2" }

// ServerConn is a connection from a client. It serves one request at a time.
type ServerConn struct {
	source
	cfg    *message.ServerConfig
	ctx    context.Context //nolint:containedctx // the parent of the contexts of the requests
	base   context.Context //nolint:containedctx // ctx without its end; abort cancels requests
	remote string
	host   string // host of the last request; "" in phaseRest
	slot   *sweep.Slot
	head   head
	out    writer
	writes sweep.Wait     // measures how long each write of a response waits
	tiny   message.Buffer // one byte, the buffer in phaseRest

	current   atomic.Pointer[request]
	stop      atomic.Pointer[error] // reason for which reading ended; nil while it continues
	closeIdle atomic.Bool           // the connection closes when it is idle
	drained   time.Duration         // time since draining began; used by the sweeper only

	ahead     atomic.Uint32 // aheadNone, aheadAllowed or aheadRunning
	aheadDone chan struct{}

	mu       sync.Mutex
	detached *hijackedConn
	readBy   time.Time // read deadline, set by the handler or to discard a body; guarded by mu
	writeBy  bool      // the handler has set a write deadline; guarded by mu
}

// NewServerConn returns a server connection on conn. The contexts of its requests have the
// values of ctx. The connection ends when ctx ends. The sweeper of cfg must not be nil.
func NewServerConn(ctx context.Context, conn net.Conn, cfg *message.ServerConfig) *ServerConn {
	c := &ServerConn{cfg: cfg, ctx: ctx, base: reqctx.Detach(ctx), tiny: message.Buffer{B: make([]byte, 0, 1)}}
	c.conn, c.failed = conn, c.readError
	c.out.conn, c.out.wait = conn, &c.writes
	if addr := conn.RemoteAddr(); addr != nil {
		c.remote = addr.String()
	}
	return c
}

// Serve serves requests until the connection ends, and then closes it. If a handler hijacks
// the connection, Serve returns when the handler closes it or the context ends. The error is nil if
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
		if r := c.current.Swap(nil); r != nil { // the handler has ended its goroutine
			r.Cancel(nil)
		}
		c.mu.Lock()
		detached := c.detached
		c.mu.Unlock()
		if detached != nil {
			select {
			case <-detached.closed:
				return
			case <-c.ctx.Done(): // the handler may never close it
			}
		}
		c.conn.Close()
		c.stopReadAhead()
		c.drop()
	}()
	for first := true; ; first = false {
		n, err := c.readHeaders()
		switch {
		case err == nil:
			err = c.head.parseRequest(c.unread()[:n])
			if first && err == errVersion && string(c.unread()[:n]) == "PRI * HTTP/2.0\r\n\r\n" { //nolint:errorlint // set by parseVersion
				conn, err := c.detach()
				if err != nil {
					return err
				}
				conn.end()
				return &PrefaceError{conn.Ahead}
			}
		case first:
			err = c.noRequest(err)
		}
		if err != nil {
			return c.reject(err)
		}
		if keep, err := c.serve(n); !keep {
			return err
		}
		c.slot.Enter(phaseIdle)
		runtime.Gosched() // under load, the next request arrives meanwhile, which saves a failed read
	}
}

// noRequest returns the error of Serve if reading has failed with err before the first request was
// complete. This is a [layer.Error] if no byte has arrived or the headers took too long, and
// otherwise err.
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

// drains reports whether the next response closes the connection, because of draining or
// CloseIdle.
func (c *ServerConn) drains() bool {
	return c.closeIdle.Load() || c.cfg.Draining != nil && c.cfg.Draining.Load()
}

// CloseIdle closes the connection at once if it is idle. Otherwise the connection closes after its
// current request.
func (c *ServerConn) CloseIdle() {
	c.closeIdle.Store(true)
	c.interrupt()
}

// ContextDone is part of [reqctx.Watcher]. It closes the connection on a new goroutine,
// because closing a TLS connection may block.
func (c *ServerConn) ContextDone(cause error) {
	c.abort(cause)
	go func() { _ = panics.Contain(func() { _ = c.conn.Close() }) }()
}

// abort ends reading and writing, and cancels the context of the current request with
// cause. A hijacked connection stays open.
func (c *ServerConn) abort(cause error) {
	c.stop.CompareAndSwap(nil, &cause)
	c.mu.Lock()
	if c.detached == nil {
		_ = c.conn.SetDeadline(past)
	}
	c.mu.Unlock()
	if r := c.current.Load(); r != nil {
		r.Cancel(cause)
	}
}

// stopReading makes the current and all later reads fail with cause. Writing is still
// possible.
func (c *ServerConn) stopReading(cause error) {
	c.stop.CompareAndSwap(nil, &cause)
	c.interrupt()
}

// interrupt makes the read in progress, or otherwise the next read, return errInterrupted.
// It does not affect a hijacked connection.
func (c *ServerConn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached == nil {
		_ = c.conn.SetReadDeadline(past)
	}
}

// setReadDeadline sets the read deadline of the connection. The zero time means no deadline.
// A call of interrupt does not remove the deadline: it is set again before the next read.
func (c *ServerConn) setReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.conn.SetReadDeadline(t)
}

// readError returns the error to report for a read that failed with err, the first that applies:
//
//   - If err is not a timeout, it is err. The request is also canceled, except in a tunnel.
//   - If stopReading or abort was called, it is the cause of that call.
//   - If the read deadline has passed, it is os.ErrDeadlineExceeded.
//   - Otherwise it is errInterrupted.
func (c *ServerConn) readError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		if r := c.current.Load(); r != nil && c.slot.Phase() != phaseTunnel {
			r.Cancel(errClientLeft)
		}
		return err
	}
	c.mu.Lock()
	by := c.readBy
	_ = c.conn.SetReadDeadline(by)
	c.mu.Unlock()
	// Reasons are looked for after the deadline was restored, so that a later
	// interruption is not lost.
	switch cause := c.stop.Load(); {
	case cause != nil:
		_ = c.conn.SetReadDeadline(past)
		return *cause
	case !by.IsZero() && !time.Now().Before(by):
		return os.ErrDeadlineExceeded
	}
	return errInterrupted
}

// Sweep is part of [sweep.Conn]. It enforces the time limits of the current phase.
func (c *ServerConn) Sweep(phase uint32, age time.Duration) (rest time.Duration) {
	over := func(age, limit time.Duration) bool { return limit > 0 && age > limit }
	drains := c.drains()
	if drains {
		limit := c.cfg.DrainTimeout
		if phase == phaseSilent {
			limit = max(limit, LeastDrain)
		}
		if c.drained += sweep.Interval; c.drained > limit && !c.closeIdle.Load() {
			c.CloseIdle()
		}
	}
	switch phase {
	case phaseSilent, phaseHead:
		if over(age, c.cfg.HeaderTimeout) {
			c.stopReading(errHeaderTimeout)
		}
	case phaseIdle:
		if over(age, c.cfg.IdleTimeout) {
			c.CloseIdle()
		} else if age >= restAfter {
			c.interrupt() // readHeaders returns the buffer
		}
	case phaseRest:
		if over(age+restAfter, c.cfg.IdleTimeout) {
			c.CloseIdle()
		} else if !drains {
			return sweep.Left(c.cfg.IdleTimeout, age+restAfter)
		}
	case phaseServe:
		r := c.current.Load()
		if r == nil {
			return 0
		}
		if b := r.body; b != nil && b.wait != nil && b.wait.TooSlow(c.cfg.BodyIdle, c.cfg.MinBodyRate) {
			c.stopReading(message.ErrSlowBody)
		}
		if over(c.writes.Sweep(), c.cfg.WriteTimeout) {
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

// readHeaders reads until the buffer has the complete headers of the next request. It
// returns their length.
func (c *ServerConn) readHeaders() (int, error) {
	limit := cmp.Or(c.cfg.MaxHeaderBytes, http.DefaultMaxHeaderBytes)
	for searched := 0; ; {
		if n := findEnd(c.unread(), searched); n > 0 {
			if n > limit {
				return 0, errTooLarge
			}
			return n, nil
		}
		switch searched = c.buffered(); {
		case searched > 0:
			if c.slot.Phase() != phaseHead {
				c.slot.Enter(phaseHead)
			}
		case c.closeIdle.Load():
			return 0, errIdleClosed
		}
		_, err := c.fill(limit)
		if err == errInterrupted { //nolint:errorlint // set by this package
			err = nil
			if searched == 0 && c.slot.Phase() == phaseIdle {
				c.release()
				c.buf, c.head.fields, c.host = &c.tiny, nil, ""
				c.slot.Enter(phaseRest)
			}
		}
		if err != nil {
			if searched > 0 {
				err = noEOF(err)
			}
			return 0, err
		}
	}
}

// serve serves the next request. Its parsed headers are the first n unread bytes. serve
// reports whether the connection can serve another request.
func (c *ServerConn) serve(n int) (keep bool, err error) {
	r, req, err := c.newRequest(n)
	if err != nil {
		return false, c.reject(err)
	}
	c.slot.Enter(phaseServe)
	c.current.Store(r)
	if cause := c.stop.Load(); cause != nil {
		r.Cancel(*cause)
	}
	if r.body == nil {
		c.ahead.Store(aheadAllowed)
	}
	hijacked, err := message.Serve(c.cfg, r, req)
	c.out.end()
	if hijacked {
		c.finish(r)
		return false, nil
	}
	whole := c.endBody(r, err == nil)
	c.finish(r)
	if err == nil && !whole {
		c.linger()
	}
	return err == nil && whole && r.keep && c.stop.Load() == nil, err
}

// endBody closes the request body, and reports whether it was read to its end. If so, the
// connection can serve another request. If drain is true, endBody first discards the unread rest of
// the body, up to drainSize bytes.
func (c *ServerConn) endBody(r *request, drain bool) bool {
	if r.body == nil {
		return true
	}
	_ = r.body.Close() // ends a Read in progress
	if r.body.whole() {
		return true
	}
	if !drain || !r.keep || c.stop.Load() != nil {
		return false
	}
	_ = c.setReadDeadline(time.Now().Add(cmp.Or(c.cfg.BodyIdle, message.LingerTime)))
	return r.body.discard(drainSize)
}

// finish ends the current request: it stops reading ahead, cancels the context of the
// request, and clears the deadlines of the handler.
func (c *ServerConn) finish(r *request) {
	c.stopReadAhead()
	c.current.Store(nil)
	r.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached != nil {
		return
	}
	if !c.readBy.IsZero() {
		c.readBy = time.Time{}
		_ = c.conn.SetReadDeadline(time.Time{})
	}
	if c.writeBy && c.stop.Load() == nil {
		c.writeBy = false
		_ = c.conn.SetWriteDeadline(time.Time{})
	}
}

// bodyEnded is part of bodyOwner. If whole is true, the body was read to its end. In this case
// bodyEnded allows readAhead, which reads bytes of the next request.
func (c *ServerConn) bodyEnded(whole bool) {
	if whole {
		c.ahead.CompareAndSwap(aheadNone, aheadAllowed)
	}
}

// reject handles the error err of reading a request. If err is a [SyntaxError], it sends a response
// with the status of err. It returns the error for Serve, which is nil if the connection ended
// between requests.
func (c *ServerConn) reject(err error) error {
	syntax, ok := errors.AsType[*SyntaxError](err)
	switch {
	case ok:
		_ = c.conn.SetWriteDeadline(time.Now().Add(message.LingerTime))
		b := appendHead(nil, syntax.Status, nil)
		b = appendField(b, "Date", message.Date())
		b = append(b, "Content-Length: 0\r\nConnection: close\r\n\r\n"...)
		if _, err := c.conn.Write(b); err == nil {
			c.linger()
		}
	case err == io.EOF || err == errIdleClosed: //nolint:errorlint // set by readHeaders
		return nil
	}
	return err
}

// linger closes the sending half of the connection and waits a short time, so that the client can
// read the last response: see [message.Linger]. It does nothing after stopReading or abort. A slow
// request body is an exception, because the client must still be able to read the response.
func (c *ServerConn) linger() {
	if cause := c.stop.Load(); cause == nil || *cause == message.ErrSlowBody { //nolint:errorlint // set by Sweep
		message.Linger(c.conn, math.MaxInt64)
	}
}
