package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/rawio"
)

// bufferedConn wraps the connection Conn, possibly with other addresses. It may also hold bytes that a
// detection has already read from Conn; its Read returns these first, so that the next server receives
// all bytes.
type bufferedConn struct {
	net.Conn
	io             io.ReadWriter // reads and writes Conn
	client, server net.Addr      // result of RemoteAddr and LocalAddr; nil means that of Conn

	// consumed is true after bytes were read from Conn. Those bytes can only be read from this
	// bufferedConn.
	consumed bool

	buffered atomic.Bool // true while head is not empty
	mu       sync.Mutex
	head     []byte // bytes that Read returns first; guarded by mu
}

// newBufferedConn returns a bufferedConn without buffered bytes.
func newBufferedConn(conn net.Conn) *bufferedConn {
	return &bufferedConn{Conn: conn, io: rawio.New(conn)}
}

// OverrideAddrs returns a connection that wraps conn and reports other addresses. RemoteAddr
// returns client, and LocalAddr server. If one of them is invalid, conn's own address is returned
// instead.
//
// The result implements ReadFrom, WriteTo and CloseWrite, so that the kernel can still copy
// between two TCP connections. NetConn returns conn.
func OverrideAddrs(conn net.Conn, client, server netip.AddrPort) net.Conn {
	f := newBufferedConn(conn)
	if client.IsValid() {
		f.client = net.TCPAddrFromAddrPort(client)
	}
	if server.IsValid() {
		f.server = net.TCPAddrFromAddrPort(server)
	}
	return f
}

// OriginalDst returns the destination address that the client of conn connected to. An
// [Origin] or [OverrideAddrs] sets this address. OriginalDst returns false if none was set.
// It also finds the address below TLS and other wrappers that have a NetConn method.
func OriginalDst(conn net.Conn) (netip.AddrPort, bool) {
	for conn != nil {
		if f, ok := conn.(*bufferedConn); ok && f.server != nil {
			return addrPort(f.server), true
		}
		conn = unwrap(conn)
	}
	return netip.AddrPort{}, false
}

// unwrap returns the connection that conn wraps, or nil if conn wraps none.
func unwrap(conn net.Conn) net.Conn {
	if w, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// innermost returns the connection below all wrappers of conn.
func innermost(conn net.Conn) net.Conn {
	for inner := unwrap(conn); inner != nil; inner = unwrap(inner) {
		conn = inner
	}
	return conn
}

// RemoteAddr returns the client's address.
func (f *bufferedConn) RemoteAddr() net.Addr {
	if f.client != nil {
		return f.client
	}
	return f.Conn.RemoteAddr()
}

// LocalAddr returns the address that the client connected to.
func (f *bufferedConn) LocalAddr() net.Addr {
	if f.server != nil {
		return f.server
	}
	return f.Conn.LocalAddr()
}

// NetConn returns the wrapped connection.
func (f *bufferedConn) NetConn() net.Conn { return f.Conn }

// Read returns the buffered bytes first. Without any, it takes no lock.
func (f *bufferedConn) Read(p []byte) (int, error) {
	// buffered is checked without the lock. Usually it is false after the first Read.
	if f.buffered.Load() && len(p) > 0 {
		if n := f.readBuffered(p); n > 0 {
			return n, nil
		}
	}
	return f.io.Read(p)
}

// Write writes to the wrapped connection.
func (f *bufferedConn) Write(p []byte) (int, error) { return f.io.Write(p) }

// readBuffered moves buffered bytes to p and returns their number.
func (f *bufferedConn) readBuffered(p []byte) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(p, f.head)
	f.store(f.head[n:])
	return n
}

// store keeps head, the bytes that Read returns first. The caller must hold f.mu.
func (f *bufferedConn) store(head []byte) {
	if len(head) == 0 {
		head = nil // release the memory
	}
	f.head = head
	f.buffered.Store(head != nil)
}

// WriteTo implements [io.WriterTo]. It copies the buffered bytes and then the rest of the
// connection to w, until EOF.
func (f *bufferedConn) WriteTo(w io.Writer) (int64, error) {
	// first counts the buffered bytes, which the kernel cannot copy.
	first := int64(0)
	if f.buffered.Load() {
		f.mu.Lock()
		head := f.head
		f.store(nil)
		f.mu.Unlock()
		n, err := w.Write(head)
		if err == nil && n < len(head) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return int64(n), err
		}
		first = int64(n)
	}
	// From here on, the kernel can copy.
	copied, err := io.Copy(w, f.Conn)
	return first + copied, err
}

// ReadFrom implements [io.ReaderFrom]. It copies from r to the connection, until EOF.
func (f *bufferedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.Conn, r) }

// CloseWrite closes the sending half of the connection.
func (f *bufferedConn) CloseWrite() error { return closeWrite(f.Conn) }

// peekSpec specifies a peek, which reads the first bytes of a connection without taking them from the
// next reader: how long it waits for them, and how many it reads.
type peekSpec struct {
	max     int                    // maximum number of bytes
	timeout time.Duration          // maximum duration of the peek
	enough  func(data []byte) bool // reports whether data, never empty, is sufficient
}

// peekSize is how many bytes the first read of a peek asks for. A ClientHello with a post-quantum
// key share and a session ticket takes about 3 KiB.
const peekSize = 4 << 10

// peekFirst waits for a client's first bytes. It returns them, and a connection that returns them
// again. On Linux the returned connection is conn itself if conn is a TCP connection, because the
// kernel keeps the bytes.
//
// The error is nil if g.enough returned true or g.max bytes were read. Otherwise it is io.EOF,
// os.ErrDeadlineExceeded, the cause of ctx, or an error from the connection.
func peekFirst(ctx context.Context, conn net.Conn, g peekSpec) (data []byte, next net.Conn, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(g.timeout))
	// A deadline in the past ends a blocked Read when ctx ends. It is removed below.
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	})
	data, next, err = peekNow(conn, g)
	// The function has started, so the deadline in the past may be set at any time: it stays.
	if !stop() {
		return data, next, context.Cause(ctx)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return data, next, err
}

// peekNow waits until g.enough returns true, g.max bytes were read, or a Read fails, for example because
// of the read deadline that peekFirst sets. It returns the bytes, and a connection that returns them again.
func peekNow(conn net.Conn, g peekSpec) (data []byte, next net.Conn, err error) {
	// The innermost bufferedConn keeps the bytes, so that each outer wrapper returns them, too. Meters between the
	// wrappers hold no bytes.
	var target *bufferedConn
	bare := withoutMeter(conn)
	for f, ok := bare.(*bufferedConn); ok; f, ok = bare.(*bufferedConn) {
		target = f
		// Bytes that are buffered here must be returned first, so the search ends.
		if f.buffered.Load() {
			break
		}
		bare = withoutMeter(f.Conn)
	}
	// Only Linux can peek at bytes in the kernel, and only on a TCP connection without buffered bytes.
	// Otherwise they are read and kept.
	if ok, data, err := peek(bare, g); ok {
		return data, conn, err
	}
	// Without a bufferedConn, a new one keeps the bytes.
	if next = conn; target == nil {
		target = newBufferedConn(conn)
		next = target
	}
	data, err = target.fill(g)
	// An earlier peek may have read more than this one may see.
	return data[:min(len(data), g.max)], next, err
}

// fill reads until g.enough returns true or g.max bytes have arrived. It keeps the bytes, so that
// Read returns them again. If an earlier call has read more than g.max bytes, the result contains
// all of them.
func (f *bufferedConn) fill(g peekSpec) (data []byte, err error) {
	// Held during the Read: concurrent Reads wait for the peeked bytes.
	f.mu.Lock()
	defer f.mu.Unlock()
	data = f.head
	defer func() { f.store(data) }()
	for !g.isEnough(data) {
		// The buffer doubles, but never exceeds what the peek may read.
		buf := make([]byte, min(g.max, max(peekSize, 2*len(data))))
		n := copy(buf, data)
		// count is declared outside of the loop, because err must be the result of fill.
		var count int
		for n < len(buf) {
			count, err = f.io.Read(buf[n:])
			n += count
			f.consumed = f.consumed || count > 0
			if err != nil || n > 0 && g.enough(buf[:n]) {
				break
			}
		}
		data = buf[:n]
		// Bytes that come with an error may be enough. The next Read returns the error again.
		if err != nil && !g.isEnough(data) {
			return data, err
		}
	}
	return data, nil
}

// isEnough reports whether data ends the peek.
func (g peekSpec) isEnough(data []byte) bool {
	return len(data) >= g.max || len(data) > 0 && g.enough(data)
}

// isTimeout reports whether err is an exceeded deadline of a connection.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
