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
)

// front is a connection of which something is known before it is served: the
// addresses that it was made from and to, or what was read of it already, which
// comes again.
type bufferedConn struct {
	net.Conn
	client, server net.Addr // where not nil, what it says instead of Conn

	// Bytes were taken from Conn, which whoever holds that will miss.
	took bool

	buffered atomic.Bool // head is not empty
	mu       sync.Mutex
	head     []byte
}

// OverrideAddrs returns conn as one that was made by client to server: that is what
// RemoteAddr and LocalAddr of it say, and of a tls.Conn around it. An address
// that is not valid leaves that of conn. It has ReadFrom, WriteTo and
// CloseWrite, so that the kernel still copies between two TCP connections, and
// NetConn, which returns conn.
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

// OriginalDst returns the address that the client of conn asked for, if one
// was found that is not simply the address of this end: by an [Origin], or
// whoever called [OverrideAddrs]. It looks below TLS and other wrappers that have
// NetConn.
func OriginalDst(conn net.Conn) (netip.AddrPort, bool) {
	for conn != nil {
		if f, ok := conn.(*bufferedConn); ok && f.server != nil {
			return addrPort(f.server), true
		}
		conn = unwrap(conn)
	}
	return netip.AddrPort{}, false
}

// below returns the connection that conn is a wrapper of, or nil.
func unwrap(conn net.Conn) net.Conn {
	if w, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// socket returns the innermost connection.
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

// NetConn returns the connection below.
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

// keep sets what comes first. It needs f.mu.
func (f *bufferedConn) keep(head []byte) {
	if len(head) == 0 {
		head = nil // what was read is held no longer
	}
	f.head = head
	f.buffered.Store(head != nil)
}

// WriteTo writes to w what comes, until the peer's end.
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

// ReadFrom sends what r gives, until its end.
func (f *bufferedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.Conn, r) }

// CloseWrite tells the peer that nothing more comes.
func (f *bufferedConn) CloseWrite() error { return closeWrite(f.Conn) }

// glance is what is to be seen of a connection before it is served.
type peekSpec struct {
	max    int                    // bytes
	within time.Duration          // from now on
	enough func(seen []byte) bool // asked when something is there
}

// firstPeek is how much is looked at first where more may follow.
const peekSize = 1 << 10

// look waits for what a client says first, and returns it with the connection
// to go on with, on which all of that is still to be read. Where it was told to
// see more than it did there is an error: io.EOF, that of the connection,
// os.ErrDeadlineExceeded, the cause of ctx. Seeing as much as it may is none.
//
// A TCP connection on Linux is left as it is, bytes and all: it needs no
// wrapper, and whoever holds it misses nothing.
func peekFirst(ctx context.Context, conn net.Conn, g peekSpec) (seen []byte, next net.Conn, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(g.within))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	seen, next, err = peekNow(conn, g)
	if !stop() {
		return seen, next, context.Cause(ctx)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return seen, next, err
}

func peekNow(conn net.Conn, g peekSpec) (seen []byte, next net.Conn, err error) {
	// What is read goes back as deep as it can, so that everybody has it who
	// holds one of the wrappers.
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

// gather reads, and puts what it read back to be read again. It may see more, if
// somebody had read that before.
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
		// What comes with an error may be enough, as from a tls.Conn that finds the
		// end behind the last bytes. The error comes again, to whoever reads on.
		if err != nil && !g.isEnough(seen) {
			return seen, err
		}
	}
	return seen, nil
}

func (g peekSpec) isEnough(seen []byte) bool {
	return len(seen) >= g.max || len(seen) > 0 && g.enough(seen)
}

// lateness reports whether err says that the client took too long.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
