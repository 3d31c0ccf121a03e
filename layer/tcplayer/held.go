package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// UntilClosed is the [layer.Completion] of connections that count until they
// are over. It returns a connection that tells o what is read from it, and when
// it ends:
//
//   - with nil at Close, once the peer's end was read, or when the peer's end
//     was read and CloseWrite was called;
//   - with [layer.ErrBodyClosedEarly] at a Close before that;
//   - with the error of a Read or Write, unless that is a deadline of the
//     holder's own, or net.ErrClosed; and with [io.ErrUnexpectedEOF] where TLS of
//     this package was cut short, which to Read is an end like any other;
//   - with the cause of ctx when that ends. The connection is reset then, and
//     its Read and Write return the cause.
//
// Whatever ended it, its holder must close it; a second Close does nothing and
// returns nil.
//
// It has ReadFrom, WriteTo and CloseWrite and uses those that conn has, so
// that the kernel still copies between two TCP connections. What WriteTo moves
// is told in two parts, a first one when it comes and the rest at the end.
// An error of the two may be the other side's, and does not end anything.
// CloseWrite without one below is [errors.ErrUnsupported]. NetConn returns conn.
//
// Several observers of one connection share one such wrapper.
//
// Give a balancer whose Until this is Sample: Head as well: the latency that it
// goes by is then that of the connect. By default it ends with the first byte,
// and a client that is silent makes the server look slow.
func UntilClosed(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	if conn == nil {
		o.End(nil)
		return nil
	}
	if h, ok := conn.(*observedConn); ok {
		h.add(o)
		return h
	}
	h := &observedConn{Conn: conn}
	h.observers = append(h.first[:0], o)
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { h.cancel(context.Cause(ctx)) }) })
		h.mu.Lock()
		h.stop = stop
		h.mu.Unlock()
	}
	return h
}

// held is a connection that is observed.
type observedConn struct {
	net.Conn

	// Written before the connection is handed to its holder, or under mu.
	observers []layer.Observer
	first     [3]layer.Observer // room for the usual few without another allocation

	heard  atomic.Bool           // a first byte came
	closed atomic.Bool           // by the holder
	broken atomic.Pointer[error] // the cause of the context that ended it

	mu      sync.Mutex
	stop    func() bool
	readEnd bool // the peer's end was read
	sentEnd bool // CloseWrite was called
	ended   bool
	err     error
}

func (h *observedConn) add(o layer.Observer) {
	h.mu.Lock()
	if h.ended {
		err := h.err
		h.mu.Unlock()
		o.End(err)
		return
	}
	h.observers = append(h.observers, o)
	h.mu.Unlock()
}

func (h *observedConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.data(n)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		h.readEOF()
	default:
		err = h.failed(err)
	}
	return n, err
}

func (h *observedConn) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	if err != nil {
		err = h.failed(err)
	}
	return n, err
}

func (h *observedConn) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	err := h.Conn.Close()
	if h.broken.Load() != nil {
		return nil
	}
	h.mu.Lock()
	whole := h.readEnd
	h.mu.Unlock()
	if whole {
		h.end(nil)
	} else {
		h.end(layer.ErrBodyClosedEarly)
	}
	return err
}

// data tells of n bytes that were read.
func (h *observedConn) data(n int) {
	if n <= 0 {
		return
	}
	if !h.heard.Load() {
		h.heard.Store(true)
	}
	for _, o := range h.observers {
		o.Data(n)
	}
}

// heardEnd notes that the peer's direction is over, in good order or not.
func (h *observedConn) readEOF() {
	if err := truncation(h.Conn); err != nil {
		h.end(err)
		return
	}
	h.half(&h.readEnd)
}

// half notes that one direction is over. With both over, so is the connection.
func (h *observedConn) half(which *bool) {
	h.mu.Lock()
	*which = true
	both := h.readEnd && h.sentEnd
	h.mu.Unlock()
	if both {
		h.end(nil)
	}
}

// failed ends the connection for an error that says so, and returns the one to
// hand on.
func (h *observedConn) failed(err error) error {
	switch {
	case h.broken.Load() != nil:
		return h.why(err)
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	default:
		h.end(err)
	}
	return err
}

// why says of an error that it came because the context had ended.
func (h *observedConn) why(err error) error {
	if cause := h.broken.Load(); cause != nil && err != nil {
		return &canceledConnError{*cause}
	}
	return err
}

// breakOff ends the connection because its context has ended. Once its holder
// hears of it, the observers have.
func (h *observedConn) cancel(cause error) {
	h.broken.Store(&cause)
	defer reset(h.Conn)
	h.end(cause)
}

func (h *observedConn) end(err error) {
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return
	}
	h.ended, h.err = true, err
	observers, stop := h.observers, h.stop
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
	panics.End(observers, err)
}

// brokenError is what a connection returns after its context has ended. It is
// no timeout, even if its cause is a deadline: that would look like one which
// the holder set, who would try again.
type canceledConnError struct{ cause error }

func (e *canceledConnError) Error() string   { return "connection closed: " + e.cause.Error() }
func (e *canceledConnError) Unwrap() []error { return []error{e.cause, net.ErrClosed} }
func (e *canceledConnError) Timeout() bool   { return false }
func (e *canceledConnError) Temporary() bool { return false }

// The methods beyond net.Conn that a net.TCPConn has, and that make copying
// fast. io.Copy finds those of the connection below by itself.

// WriteTo writes to w what comes, until the peer's end.
func (h *observedConn) WriteTo(w io.Writer) (n int64, err error) {
	told := int64(0)
	if !h.heard.Load() {
		// The time of the first byte is the one thing that a copy in the
		// kernel hides and that an observer cannot do without.
		ok, _, err := peek(withoutMeter(h.Conn), firstByte)
		switch {
		case errors.Is(err, io.EOF):
			h.readEOF()
			return 0, nil
		case err != nil:
			return 0, h.failed(err)
		case ok:
			told = 1
			h.data(1)
		default:
			if n, err = h.writeFirst(w); err != nil || n == 0 {
				return n, err
			}
		}
	}
	rest, err := io.Copy(w, h.Conn)
	h.data(int(rest - told))
	if err == nil {
		h.readEOF()
	}
	return n + rest, h.why(err)
}

// oneByte waits for the first byte. Reading it would be slower, because the
// kernel copies whole pages only while nothing is missing from the first one.
var firstByte = peekSpec{max: 1, enough: func([]byte) bool { return true }}

// firstRead is how much writeFirst reads.
const firstRead = 1 << 10

// writeFirst passes the first bytes on. It returns 0 and nil at the end.
func (h *observedConn) writeFirst(w io.Writer) (int64, error) {
	buf := make([]byte, firstRead)
	n, err := h.Read(buf)
	if n > 0 {
		sent, failed := w.Write(buf[:n])
		if failed == nil && sent < n {
			failed = io.ErrShortWrite
		}
		if failed != nil {
			return int64(sent), failed
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return int64(n), err
}

// ReadFrom sends what r gives, until its end.
func (h *observedConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(h.Conn, r)
	return n, h.why(err)
}

// CloseWrite tells the peer that nothing more comes.
func (h *observedConn) CloseWrite() error {
	err := closeWrite(h.Conn)
	if err == nil {
		h.half(&h.sentEnd)
	}
	return err
}

// NetConn returns the connection below.
func (h *observedConn) NetConn() net.Conn { return h.Conn }

// closeWrite ends one direction. TLS cannot say so before it has shaken hands:
// like its Write, that waits for it.
func closeWrite(conn net.Conn) error {
	if secure, ok := conn.(interface{ Handshake() error }); ok {
		if err := secure.Handshake(); err != nil {
			return err
		}
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of %T: %w", conn, errors.ErrUnsupported)
}

// reset closes conn so that the peer hears of it as an error, where that can be
// done, and at once: what is below TLS goes first, which would say good-bye.
func reset(conn net.Conn) {
	raw := conn
	for {
		if l, ok := raw.(interface{ SetLinger(sec int) error }); ok {
			_ = l.SetLinger(0)
		}
		w, ok := raw.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		raw = w.NetConn()
	}
	_ = raw.Close()
	if raw != conn {
		_ = conn.Close()
	}
}
