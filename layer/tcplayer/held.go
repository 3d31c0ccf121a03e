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

// UntilClosed is the [layer.Completion] that observes a connection until it is
// closed. The observer gets the number of bytes read, and at the end one of:
//
//   - nil after Close, if EOF was read, or after EOF and CloseWrite;
//   - [layer.ErrBodyClosedEarly] after an earlier Close;
//   - the error of a Read or Write, unless it is a deadline of the caller or
//     net.ErrClosed;
//   - [io.ErrUnexpectedEOF] after TLS without close_notify, for which Read returns
//     io.EOF;
//   - the cause of ctx. The connection is reset, and Read and Write return the cause.
//
// The caller must always close the connection. A second Close returns nil.
//
// The result has ReadFrom, WriteTo and CloseWrite, so that the kernel still copies between two
// TCP connections. Their errors do not end the observation, because they may come from the
// other connection. NetConn returns conn. Several observers share one wrapper.
//
// In a balancer, combine it with Sample: Head. Then the measured latency is the time to
// connect and not the time to the first byte.
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

// observedConn is a connection with observers.
type observedConn struct {
	net.Conn

	// Written before UntilClosed returns, or under mu.
	observers []layer.Observer
	first     [3]layer.Observer // avoids an allocation for the first observers

	sawByte atomic.Bool           // a byte was read
	closed  atomic.Bool           // by the caller
	broken  atomic.Pointer[error] // cause of the context, after its end

	mu      sync.Mutex
	stop    func() bool
	readEnd bool // EOF was read
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

// data reports n read bytes to the observers.
func (h *observedConn) data(n int) {
	if n <= 0 {
		return
	}
	if !h.sawByte.Load() {
		h.sawByte.Store(true)
	}
	for _, o := range h.observers {
		o.Data(n)
	}
}

// readEOF records an EOF, or TLS without close_notify.
func (h *observedConn) readEOF() {
	if err := truncation(h.Conn); err != nil {
		h.end(err)
		return
	}
	h.half(&h.readEnd)
}

// half records the end of one direction. After both directions the connection ends.
func (h *observedConn) half(which *bool) {
	h.mu.Lock()
	*which = true
	both := h.readEnd && h.sentEnd
	h.mu.Unlock()
	if both {
		h.end(nil)
	}
}

// failed ends the connection unless err is a deadline or an earlier Close. It
// returns the error for the caller.
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

// why replaces an error by the cause of the context, after its end.
func (h *observedConn) why(err error) error {
	if cause := h.broken.Load(); cause != nil && err != nil {
		return &canceledConnError{*cause}
	}
	return err
}

// cancel ends the connection after the end of its context. It notifies the
// observers before it resets the connection.
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

// canceledConnError is the error of a connection after the end of its context. It is not a
// timeout, because the caller would take it for its own deadline and retry.
type canceledConnError struct{ cause error }

func (e *canceledConnError) Error() string   { return "connection closed: " + e.cause.Error() }
func (e *canceledConnError) Unwrap() []error { return []error{e.cause, net.ErrClosed} }
func (e *canceledConnError) Timeout() bool   { return false }
func (e *canceledConnError) Temporary() bool { return false }

// The following methods of net.TCPConn make copying fast.

// WriteTo copies to w until EOF.
func (h *observedConn) WriteTo(w io.Writer) (n int64, err error) {
	reported := int64(0)
	if !h.sawByte.Load() {
		// The observers need the time of the first byte, which a copy in the
		// kernel does not report. peek does not read the byte, because the kernel
		// copies whole pages only if no byte of the first page is missing.
		ok, _, err := peek(withoutMeter(h.Conn), peekSpec{max: 1, enough: func([]byte) bool { return true }})
		switch {
		case errors.Is(err, io.EOF):
			h.readEOF()
			return 0, nil
		case err != nil:
			return 0, h.failed(err)
		case ok:
			reported = 1
			h.data(1)
		default:
			if n, err = h.writeFirst(w); err != nil || n == 0 {
				return n, err
			}
		}
	}
	rest, err := io.Copy(w, h.Conn)
	h.data(int(rest - reported))
	if err == nil {
		h.readEOF()
	}
	return n + rest, h.why(err)
}

// firstRead is the buffer size of writeFirst.
const firstRead = 1 << 10

// writeFirst copies the first bytes. It returns 0 and nil at EOF.
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

// ReadFrom copies from r until EOF.
func (h *observedConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(h.Conn, r)
	return n, h.why(err)
}

// CloseWrite ends the sending direction.
func (h *observedConn) CloseWrite() error {
	err := closeWrite(h.Conn)
	if err == nil {
		h.half(&h.sentEnd)
	}
	return err
}

// NetConn returns the wrapped connection.
func (h *observedConn) NetConn() net.Conn { return h.Conn }

// closeWrite ends the sending direction. TLS needs a finished handshake for it.
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

// reset closes conn with a TCP reset, where supported. It closes the connection
// below TLS first, because TLS would send close_notify.
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
