package tcplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// UntilClosed is a [layer.Completion] that observes a connection until it is closed. It calls
// o.Data with the number of bytes in each Read. It calls End once, with one of:
//
//   - nil, when EOF was read and Close or CloseWrite was called;
//   - [layer.ErrBodyClosedEarly], when Close was called before EOF was read;
//   - the error from a Read or Write, other than net.ErrClosed or a deadline of the caller;
//   - [io.ErrUnexpectedEOF] if TLS ended without close_notify, although Read returns io.EOF;
//   - the cause of ctx, when ctx ends. The connection is reset then, and Read and Write
//     return the cause.
//
// The caller must always close the connection. A second Close returns nil.
//
// The result implements ReadFrom, WriteTo and CloseWrite, so that the kernel can still copy
// between two TCP connections. Their errors do not end the observation, because they may come
// from the other connection. NetConn returns conn. If conn is already observed, the new observer
// is added to the same wrapper.
//
// In a balancer, you should set balance.Policy's Sample to SampleHeaders. The measured latency is
// then the time to connect, and not, as by default, the time to the first byte.
func UntilClosed(ctx context.Context, conn net.Conn, o layer.Observer) net.Conn {
	if conn == nil {
		o.End(nil)
		return nil
	}
	// All observers of a connection share one wrapper.
	if h, ok := conn.(*observedConn); ok {
		h.add(o)
		return h
	}
	h := &observedConn{Conn: conn}
	h.observers = append(h.first[:0], o)
	// A context that cannot end needs no watching.
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { h.cancel(context.Cause(ctx)) }) })
		h.mu.Lock()
		h.stop = stop
		h.mu.Unlock()
	}
	return h
}

// observedConn wraps a connection for UntilClosed. It notifies observers of each Read and when
// the connection ends.
type observedConn struct {
	net.Conn

	// observers are notified of each Read and when the connection ends. They are written before
	// UntilClosed returns, or with mu held.
	observers []layer.Observer
	first     [3]layer.Observer // avoids an allocation for the first observers

	sawByte atomic.Bool           // a byte was read
	closed  atomic.Bool           // Close was called
	broken  atomic.Pointer[error] // cause of the context; nil before the context ends

	mu      sync.Mutex
	stop    func() bool // stops waiting for the end of the context; nil if the context cannot end
	readEnd bool        // EOF was read
	sentEnd bool        // CloseWrite was called
	ended   bool        // End was called
	err     error       // argument of End
}

// add adds an observer. If the observation has ended already, it notifies o at once.
func (h *observedConn) add(o layer.Observer) {
	// The response may already have ended. The observer must then learn that at once.
	h.mu.Lock()
	if h.ended {
		err := h.err
		h.mu.Unlock()
		// Without the lock, because End calls foreign code.
		o.End(err)
		return
	}
	h.observers = append(h.observers, o)
	h.mu.Unlock()
}

// Read reads, reports the bytes, and notices the end of the connection.
func (h *observedConn) Read(p []byte) (int, error) {
	// Observers learn of the bytes before they learn of the end.
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

// Write writes, and notices that the connection has failed.
func (h *observedConn) Write(p []byte) (int, error) {
	n, err := h.Conn.Write(p)
	if err != nil {
		err = h.failed(err)
	}
	return n, err
}

// Close closes the connection and ends the observation. A second call does nothing.
func (h *observedConn) Close() error {
	// A second Close must not report another end.
	if h.closed.Swap(true) {
		return nil
	}
	err := h.Conn.Close()
	// The context has ended before, and the observers know its cause.
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

// data calls the observers' Data with n, the number of bytes that were read, unless n is 0.
func (h *observedConn) data(n int) {
	if n <= 0 {
		return
	}
	// Load first, because a store to memory that other cores read is slow.
	if !h.sawByte.Load() {
		h.sawByte.Store(true)
	}
	for _, o := range h.observers {
		o.Data(n)
	}
}

// readEOF records that the peer closed its sending half. If TLS ended without close_notify,
// it ends the observation with an error.
func (h *observedConn) readEOF() {
	if err := truncation(h.Conn); err != nil {
		h.end(err)
		return
	}
	h.endDirection(&h.readEnd)
}

// endDirection records that one direction has ended by setting *end, which is h.readEnd or
// h.sentEnd. When both are true, it ends the observation without an error.
func (h *observedConn) endDirection(end *bool) {
	h.mu.Lock()
	*end = true
	ended := h.readEnd && h.sentEnd
	h.mu.Unlock()
	if ended {
		h.end(nil)
	}
}

// failed returns the error for a Read or Write that failed with err. If the context has ended,
// that is an error with the context's cause. Otherwise it is err, and failed ends the observation
// with err unless a deadline or an earlier Close caused it.
func (h *observedConn) failed(err error) error {
	switch {
	case h.broken.Load() != nil:
		return h.withCause(err)
	// The caller caused these errors itself, by Close or a deadline, and Close ends the observation.
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, os.ErrDeadlineExceeded):
	default:
		h.end(err)
	}
	return err
}

// withCause returns err, or an error with the context's cause if err is not nil and the context
// has ended.
func (h *observedConn) withCause(err error) error {
	if cause := h.broken.Load(); cause != nil && err != nil {
		return &canceledConnError{*cause}
	}
	return err
}

// cancel ends the observation because the context has ended. It notifies the observers
// before it resets the connection.
func (h *observedConn) cancel(cause error) {
	h.broken.Store(&cause)
	defer reset(h.Conn)
	h.end(cause)
}

// end ends the observation with err. Only the first call has an effect.
func (h *observedConn) end(err error) {
	h.mu.Lock()
	if h.ended {
		// Another direction or the context has ended the observation already.
		h.mu.Unlock()
		return
	}
	h.ended, h.err = true, err
	// Copied, because the observers are called without mu: they may call methods of the connection.
	observers := h.observers
	stop := h.stop
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
	panics.End(observers, err)
}

// canceledConnError is what Read and Write return after the context has ended. Its Timeout method
// returns false, because a caller could otherwise assume that its own deadline was exceeded, and
// retry.
type canceledConnError struct{ cause error }

func (e *canceledConnError) Error() string   { return "connection closed: " + e.cause.Error() }
func (e *canceledConnError) Unwrap() []error { return []error{e.cause, net.ErrClosed} }
func (e *canceledConnError) Timeout() bool   { return false }
func (e *canceledConnError) Temporary() bool { return false }

// The following methods of net.TCPConn allow the kernel to copy.

// WriteTo implements [io.WriterTo]. It copies from the connection to w, until EOF, and reports the
// first byte at once and all others afterwards.
func (h *observedConn) WriteTo(w io.Writer) (n int64, err error) {
	// The number of bytes of the copy that were reported before it.
	reported := int64(0)
	if !h.sawByte.Load() {
		// The observers need to know when the first byte arrives, which a copy in the kernel does
		// not report. peek does not read the byte, because the kernel copies whole pages only if
		// no byte is missing from the first one.
		// A byte is enough to report the start.
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
			// The kernel cannot peek here, so the first bytes are read and written in this process.
			if n, err = h.writeFirst(w); err != nil || n == 0 {
				return n, err
			}
		}
	}
	// Everything else is copied by the kernel if possible, and reported afterwards.
	copied, err := io.Copy(w, h.Conn)
	for unreported := copied - reported; unreported > 0; {
		size := int(min(unreported, math.MaxInt)) // an int may have 32 bits
		h.data(size)
		unreported -= int64(size)
	}
	if err == nil {
		h.readEOF()
	}
	return n + copied, h.withCause(err)
}

// firstRead is the buffer size of writeFirst, in bytes. It is small, because io.Copy copies all
// bytes after the first Read, in the kernel if it can.
const firstRead = 1 << 10

// writeFirst copies the result of a single Read to w. The Read tells the observers as soon as the
// first byte arrives. At EOF writeFirst returns 0 and nil.
func (h *observedConn) writeFirst(w io.Writer) (int64, error) {
	buf := make([]byte, firstRead)
	n, err := h.Read(buf)
	if n > 0 {
		// What was read counts first, even if an error came with it.
		sent, failed := w.Write(buf[:n])
		// A Writer that writes less must return an error. This one does not.
		if failed == nil && sent < n {
			failed = io.ErrShortWrite
		}
		if failed != nil {
			return int64(sent), failed
		}
	}
	// A WriterTo reports the end without an error.
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return int64(n), err
}

// ReadFrom implements [io.ReaderFrom]. It copies from r to the connection, until EOF.
func (h *observedConn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(h.Conn, r)
	return n, h.withCause(err)
}

// CloseWrite closes the sending half of the connection.
func (h *observedConn) CloseWrite() error {
	err := closeWrite(h.Conn)
	if err == nil {
		h.endDirection(&h.sentEnd)
	}
	return err
}

// NetConn returns the wrapped connection.
func (h *observedConn) NetConn() net.Conn { return h.Conn }

// closeWrite closes the sending half of conn. On a TLS connection, it completes the handshake
// first. The error matches errors.ErrUnsupported if conn does not implement CloseWrite.
func closeWrite(conn net.Conn) error {
	// The end of TLS can only be sent after the handshake.
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

// reset closes conn. If the connection below all wrappers is a TCP connection, the peer
// receives a TCP reset. The TCP connection is closed before TLS, because TLS would send
// close_notify.
func reset(conn net.Conn) {
	// The linger time belongs to the innermost TCP connection, so the loop goes down to it.
	raw := conn
	for {
		if l, ok := raw.(interface{ SetLinger(sec int) error }); ok {
			// Without a linger time, close sends a reset.
			_ = l.SetLinger(0)
		}
		w, ok := raw.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		raw = w.NetConn()
	}
	// First the TCP connection, because its Close sends the reset.
	_ = raw.Close()
	if raw != conn {
		_ = conn.Close()
	}
}
