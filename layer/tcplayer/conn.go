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
)

// bufferedConn is a connection with overridden addresses, or with bytes that
// were read from it and are returned again.
type bufferedConn struct {
	net.Conn
	client, server net.Addr // nil: the address of Conn

	// took reports that bytes were read from Conn, so that Conn alone is incomplete.
	took bool

	buffered atomic.Bool // head is not empty
	mu       sync.Mutex
	head     []byte
}

// OverrideAddrs returns conn with other addresses: RemoteAddr returns client,
// and LocalAddr returns server. An invalid address has no effect. The
// result has ReadFrom, WriteTo and CloseWrite, so that the kernel still copies
// between two TCP connections. NetConn returns conn.
func OverrideAddrs(conn net.Conn, client, server netip.AddrPort) net.Conn {
	f := &bufferedConn{Conn: conn}
	if client.IsValid() {
		f.client = net.TCPAddrFromAddrPort(client)
	}
	if server.IsValid() {
		f.server = net.TCPAddrFromAddrPort(server)
	}
	return f
}

// OriginalDst returns the destination address that the client of conn asked for, as set by an
// [Origin] or [OverrideAddrs]. It looks through TLS and other wrappers with NetConn.
func OriginalDst(conn net.Conn) (netip.AddrPort, bool) {
	for conn != nil {
		if f, ok := conn.(*bufferedConn); ok && f.server != nil {
			return addrPort(f.server), true
		}
		conn = unwrap(conn)
	}
	return netip.AddrPort{}, false
}

// unwrap returns the connection inside the wrapper conn, or nil.
func unwrap(conn net.Conn) net.Conn {
	if w, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// innermost returns the connection inside all wrappers.
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

// NetConn returns the wrapped connection.
func (f *bufferedConn) NetConn() net.Conn { return f.Conn }

func (f *bufferedConn) Read(p []byte) (int, error) {
	if f.buffered.Load() && len(p) > 0 {
		if n := f.readBuffered(p); n > 0 {
			return n, nil
		}
	}
	return f.Conn.Read(p)
}

func (f *bufferedConn) readBuffered(p []byte) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(p, f.head)
	f.keep(f.head[n:])
	return n
}

// keep sets the bytes to return first. f.mu must be held.
func (f *bufferedConn) keep(head []byte) {
	if len(head) == 0 {
		head = nil // release the memory
	}
	f.head = head
	f.buffered.Store(head != nil)
}

// WriteTo copies to w until EOF.
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

// ReadFrom copies from r until EOF.
func (f *bufferedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.Conn, r) }

// CloseWrite ends the sending direction.
func (f *bufferedConn) CloseWrite() error { return closeWrite(f.Conn) }

// peekSpec limits a peek at the first bytes of a connection.
type peekSpec struct {
	max    int                    // bytes
	within time.Duration          // from the call
	enough func(seen []byte) bool // called with at least one byte
}

// peekSize is the size of the first read.
const peekSize = 1 << 10

// peekFirst waits for the first bytes of a client. It returns them with a
// connection that returns them again. The error is nil if g.enough returned
// true or if g.max bytes were read. Otherwise it is io.EOF,
// os.ErrDeadlineExceeded, the cause of ctx or the error of the connection.
//
// On Linux a TCP connection is returned unchanged, because the kernel keeps the bytes.
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
	// The bytes go back to the innermost bufferedConn, so that each outer
	// wrapper returns them too.
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
		target = &bufferedConn{Conn: conn}
		next = target
	}
	seen, err = target.fill(g)
	return seen[:min(len(seen), g.max)], next, err
}

// fill reads bytes and keeps them in the buffer. It may return more than g.max
// if an earlier call had read more.
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
			more, err = f.Conn.Read(buf[n:])
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

// isTimeout reports whether err is an exceeded deadline.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
