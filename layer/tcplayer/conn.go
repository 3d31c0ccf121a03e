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

// bufferedConn wraps the connection Conn. It can have other addresses than Conn. It can
// also hold bytes that were already read from Conn; its Read returns these bytes first.
type bufferedConn struct {
	net.Conn
	io             io.ReadWriter // reads and writes Conn
	client, server net.Addr      // result of RemoteAddr and LocalAddr; nil means that of Conn

	// took is true after bytes were read from Conn. Those bytes can only be read from this
	// bufferedConn.
	took bool

	buffered atomic.Bool // true while head is not empty
	mu       sync.Mutex
	head     []byte // bytes that Read returns first; guarded by mu
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	return &bufferedConn{Conn: conn, io: rawio.New(conn)}
}

// OverrideAddrs returns a connection that wraps conn and has other addresses. RemoteAddr returns
// client, or the address of conn if client is invalid. LocalAddr returns server, or the address of
// conn if server is invalid.
//
// The result has ReadFrom, WriteTo and CloseWrite, so that the kernel can still copy
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

func unwrap(conn net.Conn) net.Conn {
	if w, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// innermost returns the connection below all wrappers of conn.
func innermost(conn net.Conn) net.Conn {
	for in := unwrap(conn); in != nil; in = unwrap(in) {
		conn = in
	}
	return conn
}

func (f *bufferedConn) RemoteAddr() net.Addr {
	if f.client != nil {
		return f.client
	}
	return f.Conn.RemoteAddr()
}

func (f *bufferedConn) LocalAddr() net.Addr {
	if f.server != nil {
		return f.server
	}
	return f.Conn.LocalAddr()
}

func (f *bufferedConn) NetConn() net.Conn { return f.Conn }

func (f *bufferedConn) Read(p []byte) (int, error) {
	if f.buffered.Load() && len(p) > 0 {
		if n := f.readBuffered(p); n > 0 {
			return n, nil
		}
	}
	return f.io.Read(p)
}

func (f *bufferedConn) Write(p []byte) (int, error) { return f.io.Write(p) }

func (f *bufferedConn) readBuffered(p []byte) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(p, f.head)
	f.keep(f.head[n:])
	return n
}

// keep stores head, the bytes that Read returns first. The caller must hold f.mu.
func (f *bufferedConn) keep(head []byte) {
	if len(head) == 0 {
		head = nil // release the memory
	}
	f.head = head
	f.buffered.Store(head != nil)
}

// WriteTo is part of [io.WriterTo]. It copies the buffered bytes and then the rest of the
// connection to w, until EOF.
func (f *bufferedConn) WriteTo(w io.Writer) (int64, error) {
	first := int64(0)
	if f.buffered.Load() {
		f.mu.Lock()
		head := f.head
		f.keep(nil)
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
	rest, err := io.Copy(w, f.Conn)
	return first + rest, err
}

// ReadFrom is part of [io.ReaderFrom]. It copies from r to the connection, until EOF.
func (f *bufferedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.Conn, r) }

// CloseWrite closes the sending half of the connection.
func (f *bufferedConn) CloseWrite() error { return closeWrite(f.Conn) }

// peekSpec specifies how long a peek waits for the first bytes of a connection, and how
// many bytes it reads.
type peekSpec struct {
	max    int                    // maximum number of bytes
	within time.Duration          // maximum duration of the peek
	enough func(seen []byte) bool // reports whether seen, never empty, is sufficient
}

// peekSize is the number of bytes in the first read of a peek. A ClientHello with a post-quantum
// key share and a session ticket has about 3 KiB.
const peekSize = 4 << 10

// peekFirst waits for the first bytes of a client. It returns the bytes, and a connection
// that returns them again. On Linux the returned connection is conn itself if conn is a
// TCP connection, because the kernel keeps the bytes.
//
// The error is nil if g.enough returned true or g.max bytes were read. Otherwise it is
// io.EOF, os.ErrDeadlineExceeded, the cause of ctx, or the error of the connection.
func peekFirst(ctx context.Context, conn net.Conn, g peekSpec) (seen []byte, next net.Conn, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(g.within))
	stop := context.AfterFunc(ctx, func() {
		_ = panics.Contain(func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	})
	seen, next, err = peekNow(conn, g)
	if !stop() {
		return seen, next, context.Cause(ctx)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return seen, next, err
}

func peekNow(conn net.Conn, g peekSpec) (seen []byte, next net.Conn, err error) {
	// The innermost bufferedConn keeps the bytes, so that each outer wrapper returns
	// them, too.
	var target *bufferedConn
	bare := withoutMeter(conn)
	for f, ok := bare.(*bufferedConn); ok; f, ok = bare.(*bufferedConn) {
		target = f
		if f.buffered.Load() {
			break
		}
		bare = withoutMeter(f.Conn)
	}
	if ok, seen, err := peek(bare, g); ok {
		return seen, conn, err
	}
	if next = conn; target == nil {
		target = newBufferedConn(conn)
		next = target
	}
	seen, err = target.fill(g)
	return seen[:min(len(seen), g.max)], next, err
}

// fill reads until g.enough returns true or g.max bytes have arrived. It keeps the bytes, so that
// Read returns them again. If an earlier call has read more than g.max bytes, the result has all of
// them.
func (f *bufferedConn) fill(g peekSpec) (seen []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen = f.head
	defer func() { f.keep(seen) }()
	for !g.isEnough(seen) {
		buf := make([]byte, min(g.max, max(peekSize, 2*len(seen))))
		n := copy(buf, seen)
		var more int
		for n < len(buf) {
			more, err = f.io.Read(buf[n:])
			n += more
			f.took = f.took || more > 0
			if err != nil || n > 0 && g.enough(buf[:n]) {
				break
			}
		}
		seen = buf[:n]
		// Bytes that come with an error may be enough. The next Read returns the error again.
		if err != nil && !g.isEnough(seen) {
			return seen, err
		}
	}
	return seen, nil
}

func (g peekSpec) isEnough(seen []byte) bool {
	return len(seen) >= g.max || len(seen) > 0 && g.enough(seen)
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
