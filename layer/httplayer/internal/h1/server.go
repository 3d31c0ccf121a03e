package h1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Phases of a server connection.
const (
	phaseHead  uint32 = iota + 1 // a part of the headers has been received, or it is the first request
	phaseIdle                    // between requests, with a buffer
	phaseRest                    // between requests, without a buffer
	phaseServe                   // the handler runs
)

const (
	restAfter  = 200 * time.Millisecond // an idle connection keeps its buffer for so long
	lingerTime = 500 * time.Millisecond // for a client to receive the last response
	drainSize  = 256 << 10              // of the rest of a body that is read for the next request
)

var (
	errHeaderTimeout = errors.New("timeout of the request headers")
	errWriteTimeout  = errors.New("timeout of writing the response")
	errClientLeft    = errors.New("the client has closed the connection")
	errNoResponse    = errors.New("the exchange returned no response")
	errIdleClosed    = errors.New("idle connection closed")

	past = time.Unix(1, 0)
)

// ServerConn is a connection of a server.
type ServerConn struct {
	source
	cfg    *message.ServerConfig
	ctx    context.Context //nolint:containedctx // the parent of the contexts of the requests
	base   context.Context //nolint:containedctx // ctx without its end, which abort passes on
	remote string
	slot   *sweep.Slot
	head   head
	out    writer
	first  [1]byte // read by a resting connection

	current   atomic.Pointer[request]
	stop      atomic.Pointer[error] // why nothing more is read
	draining  atomic.Bool
	closeIdle atomic.Bool
	rest      atomic.Bool // the buffer of an idle connection is to be returned

	ahead     atomic.Uint32 // see readAhead
	aheadDone chan struct{}
	tunnels   bool // the connection has become a tunnel

	mu       sync.Mutex
	detached *hijackedConn
	readBy   time.Time // deadline of the handler, or of a discarded body
	writeBy  bool      // the handler has set a write deadline
}

// NewServerConn returns a server connection. Its requests have the values of ctx,
// and the end of ctx ends the connection. The sweeper of cfg is not nil.
func NewServerConn(ctx context.Context, conn net.Conn, cfg *message.ServerConfig) *ServerConn {
	c := &ServerConn{cfg: cfg, ctx: ctx, base: reqctx.Detach(ctx)}
	c.conn, c.failed = conn, c.readError
	c.out.conn = conn
	if addr := conn.RemoteAddr(); addr != nil {
		c.remote = addr.String()
	}
	return c
}

// Serve serves the connection until it ends and closes it. A hijacked connection
// ends when the handler closes it. The error is nil after an end between
// requests, a [SyntaxError] after a malformed request, else the reason.
func (c *ServerConn) Serve() error {
	c.slot = c.cfg.Sweeper.Add(c, phaseHead)
	watch := reqctx.Watch(c.ctx, c)
	defer func() {
		watch.Stop()
		c.slot.Remove()
		if r := c.current.Swap(nil); r != nil { // the handler has ended its goroutine
			r.Cancel(nil)
		}
		c.mu.Lock()
		detached := c.detached
		c.mu.Unlock()
		if detached != nil {
			<-detached.closed
			return
		}
		c.conn.Close()
		c.stopReadAhead()
		c.drop()
	}()
	for {
		n, err := c.readHeaders()
		if err == nil {
			err = c.head.parseRequest(c.unread()[:n])
		}
		if err != nil {
			return c.reject(err)
		}
		if keep, err := c.serve(n); !keep {
			return err
		}
		c.slot.Enter(phaseIdle)
	}
}

// Drain makes the connection close after the current or next response.
func (c *ServerConn) Drain() { c.draining.Store(true) }

// drains reports whether the connection, or its server, is draining.
func (c *ServerConn) drains() bool {
	return c.draining.Load() || c.cfg.Draining != nil && c.cfg.Draining.Load()
}

// CloseIdle closes the connection if it is between requests, else after the
// current one.
func (c *ServerConn) CloseIdle() {
	c.draining.Store(true)
	c.closeIdle.Store(true)
	c.interrupt()
}

// Close closes the connection, and cancels the context of its request.
func (c *ServerConn) Close() error {
	c.abort(net.ErrClosed)
	return c.conn.Close()
}

// ContextDone is part of [reqctx.Watcher].
func (c *ServerConn) ContextDone(cause error) { c.abort(cause) }

// abort ends reading and writing, and the current request.
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

// stopReading ends reading.
func (c *ServerConn) stopReading(cause error) {
	c.stop.CompareAndSwap(nil, &cause)
	c.interrupt()
}

// interrupt makes a read in progress return errInterrupted.
func (c *ServerConn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached == nil {
		_ = c.conn.SetReadDeadline(past)
	}
}

// setReadDeadline sets the deadline that an interruption restores.
func (c *ServerConn) setReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.conn.SetReadDeadline(t)
}

// readError returns the reason of a failed read: the cause set by stopReading, an exceeded
// deadline, errInterrupted, or err.
func (c *ServerConn) readError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		if r := c.current.Load(); r != nil && !c.tunnels {
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

// Sweep is part of [sweep.Conn].
func (c *ServerConn) Sweep(phase uint32, age time.Duration) {
	over := func(age, limit time.Duration) bool { return limit > 0 && age > limit }
	switch phase {
	case phaseHead:
		if over(age, c.cfg.HeaderTimeout) {
			c.stopReading(errHeaderTimeout)
		}
	case phaseIdle:
		if over(age, c.cfg.IdleTimeout) {
			c.CloseIdle()
		} else if age >= restAfter {
			c.rest.Store(true)
			c.interrupt()
		}
	case phaseRest:
		if over(age+restAfter, c.cfg.IdleTimeout) {
			c.CloseIdle()
		}
	case phaseServe:
		r := c.current.Load()
		if r == nil {
			return
		}
		if r.slow && c.tooSlow(&r.reads) {
			c.stopReading(message.ErrSlowBody)
		}
		if over(r.writes.sweep(), c.cfg.WriteTimeout) {
			c.abort(errWriteTimeout)
		}
		if age > sweep.Interval { // it was entered less than one earlier
			c.startReadAhead()
		}
	}
}

// tooSlow reports whether a body pauses for too long or arrives at a too low rate.
func (c *ServerConn) tooSlow(w *wait) bool {
	pause := w.sweep()
	if c.cfg.BodyIdle > 0 && pause > c.cfg.BodyIdle {
		return true
	}
	grace := max(c.cfg.BodyIdle, time.Second)
	return c.cfg.MinBodyRate > 0 && w.total > grace &&
		float64(w.bytes.Load()) < float64(c.cfg.MinBodyRate)*w.total.Seconds()
}

// readHeaders reads the headers of the next request and returns their length.
func (c *ServerConn) readHeaders() (int, error) {
	limit := headerLimit(c.cfg.MaxHeaderBytes)
	for searched := 0; ; {
		if n := findEnd(c.unread(), searched); n > 0 {
			if n > limit {
				return 0, errTooLarge
			}
			return n, nil
		}
		switch searched = c.buffered(); {
		case searched >= limit:
			return 0, errTooLarge
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
			if searched == 0 && c.rest.Swap(false) {
				err = c.waitWithoutBuffer()
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

// waitWithoutBuffer waits for the first byte of the next request.
func (c *ServerConn) waitWithoutBuffer() error {
	c.release()
	c.head.fields = nil
	c.slot.Enter(phaseRest)
	for {
		if c.closeIdle.Load() {
			return errIdleClosed
		}
		_, err := c.read(c.first[:])
		if err == nil {
			c.buf = getBuffer(&smallBuffers)
			c.r, c.w = 0, copy(c.buf.b, c.first[:])
		}
		if err != errInterrupted { //nolint:errorlint // set by this package
			return err
		}
	}
}

// serve serves the request with the parsed headers of n bytes.
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
	if !r.hasBody {
		c.ahead.Store(aheadAllowed)
	}
	hijacked := false
	if c.cfg.Exchange != nil {
		err = c.exchange(r, req)
	} else {
		hijacked, err = message.ServeHandler(c.cfg.Handler, &r.stream, req, c.cfg.Log)
	}
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

// exchange calls the exchange and sends its response.
func (c *ServerConn) exchange(r *request, req *http.Request) error {
	err := panics.Do("exchange", func() error {
		rsp, err := c.cfg.Exchange(req)
		switch {
		case err != nil:
			return err
		case rsp == nil:
			return errNoResponse
		}
		return c.respond(r, rsp)
	})
	if _, ok := errors.AsType[*panics.Error](err); ok {
		c.cfg.Log.Error("exchange panicked", "error", err, "remote", c.remote)
	}
	return err
}

// endBody ends the use of the request body. It reports whether the next request
// can be read. If drain is false, it does not read the rest.
func (c *ServerConn) endBody(r *request, drain bool) bool {
	if !r.hasBody {
		return true
	}
	_ = r.body.Close() // ends a Read in progress
	if r.body.whole() {
		return true
	}
	if !drain || !r.keep || c.stop.Load() != nil {
		return false
	}
	pause := lingerTime
	if c.cfg.BodyIdle > 0 {
		pause = c.cfg.BodyIdle
	}
	_ = c.setReadDeadline(time.Now().Add(pause))
	return r.body.discard(drainSize)
}

// finish ends a request.
func (c *ServerConn) finish(r *request) {
	c.stopReadAhead()
	c.current.Store(nil)
	r.Cancel(nil)
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

// proceed is part of bodyOwner: it sends 100 Continue.
func (c *ServerConn) proceed() error {
	if r := c.current.Load(); r != nil {
		return r.stream.Inform(http.StatusContinue, nil)
	}
	return nil
}

// bodyEnded is part of bodyOwner.
func (c *ServerConn) bodyEnded(whole bool) {
	if whole {
		c.ahead.CompareAndSwap(aheadNone, aheadAllowed)
	}
}

// reject answers a request that cannot be served.
func (c *ServerConn) reject(err error) error {
	syntax, ok := errors.AsType[*SyntaxError](err)
	switch {
	case ok:
		_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTime))
		b := appendStatus(nil, syntax.Status)
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

// linger closes the sending half and reads for a moment, because a client that is
// still sending would get a reset, which destroys the response.
func (c *ServerConn) linger() {
	if cause := c.stop.Load(); cause != nil && *cause != message.ErrSlowBody { //nolint:errorlint // set by Sweep
		return
	}
	if closeWrite(c.conn) != nil {
		return
	}
	space := getBuffer(&smallBuffers)
	defer space.put()
	end := time.Now().Add(lingerTime)
	_ = c.conn.SetReadDeadline(end)
	for time.Now().Before(end) {
		if _, err := c.conn.Read(space.b); err != nil {
			return
		}
	}
}
