package tcplayer

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// front is a connection of which something is known before it is served: the
// addresses that it was made from and to, or what was read of it already, which
// comes again.
type front struct {
	net.Conn
	client, server net.Addr // where not nil, what it says instead of Conn

	// Bytes were taken from Conn, which whoever holds that will miss.
	took bool

	again atomic.Bool // head is not empty
	mu    sync.Mutex
	head  []byte
}

// OverrideAddrs returns conn as one that was made by client to server: that is what
// RemoteAddr and LocalAddr of it say, and of a tls.Conn around it. An address
// that is not valid leaves that of conn. It has ReadFrom, WriteTo and
// CloseWrite, so that the kernel still copies between two TCP connections, and
// NetConn, which returns conn.
func OverrideAddrs(conn net.Conn, client, server netip.AddrPort) net.Conn {
	f := &front{Conn: conn}
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
		if f, ok := conn.(*front); ok && f.server != nil {
			return addrPort(f.server), true
		}
		conn = below(conn)
	}
	return netip.AddrPort{}, false
}

// below returns the connection that conn is a wrapper of, or nil.
func below(conn net.Conn) net.Conn {
	if w, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}

// socket returns the innermost connection.
func socket(conn net.Conn) net.Conn {
	for in := below(conn); in != nil; in = below(in) {
		conn = in
	}
	return conn
}

func (f *front) RemoteAddr() net.Addr {
	if f.client != nil {
		return f.client
	}
	return f.Conn.RemoteAddr()
}

func (f *front) LocalAddr() net.Addr {
	if f.server != nil {
		return f.server
	}
	return f.Conn.LocalAddr()
}

// NetConn returns the connection below.
func (f *front) NetConn() net.Conn { return f.Conn }

func (f *front) Read(p []byte) (int, error) {
	if f.again.Load() && len(p) > 0 {
		if n := f.reread(p); n > 0 {
			return n, nil
		}
	}
	return f.Conn.Read(p)
}

func (f *front) reread(p []byte) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(p, f.head)
	f.keep(f.head[n:])
	return n
}

// keep sets what comes first. It needs f.mu.
func (f *front) keep(head []byte) {
	if len(head) == 0 {
		head = nil // what was read is held no longer
	}
	f.head = head
	f.again.Store(head != nil)
}

// WriteTo writes to w what comes, until the peer's end.
func (f *front) WriteTo(w io.Writer) (int64, error) {
	first := int64(0)
	if f.again.Load() {
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
func (f *front) ReadFrom(r io.Reader) (int64, error) { return io.Copy(f.Conn, r) }

// CloseWrite tells the peer that nothing more comes.
func (f *front) CloseWrite() error { return closeWrite(f.Conn) }
