package message

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// Hijack returns a connection on which the handler writes the response, and after a 101, or a 2xx
// for CONNECT, the bytes in the tunnel. The caller must close it. If the handler has set such a
// status before, the tunnel begins immediately. Hijack implements [http.Hijacker].
func (x *handled) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := x.failure(); err != nil {
		return nil, nil, err
	}
	// The handler has begun an ordinary response, so the connection is not its own any more.
	if x.status != 0 && !x.tunnels(x.status) || x.started() {
		return nil, nil, http.ErrNotSupported
	}
	// Two pipes, because each direction must be closable separately.
	in, otherOut := net.Pipe()
	out, otherIn := net.Pipe()
	conn := &hijackedConn{Conn: in, out: out, x: x}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tunnel = &hijackedTunnel{&hijackedConn{Conn: otherIn, out: otherOut, x: x}, otherIn}
	if x.status != 0 {
		x.rsp = x.newResponse(x.header.Clone(), x.tunnel, -1)
	}
	x.moved.Broadcast()
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), nil
}

// tunnels reports whether a response with the given status begins a tunnel.
func (x *handled) tunnels(status int) bool {
	return status == http.StatusSwitchingProtocols || x.req.Method == http.MethodConnect && status/100 == 2
}

// hijackedTunnel is the body of a response that begins a tunnel: the end of a hijacked connection that
// the handler does not hold.
type hijackedTunnel struct {
	*hijackedConn
	in io.Reader // yields the first bytes, which were read with the response
}

// readResponse returns the response that the handler writes on the other end of t.
func (t *hijackedTunnel) readResponse() (*http.Response, error) {
	x := t.x
	r := bufio.NewReader(t.in)
	for {
		rsp, err := http.ReadResponse(r, x.req)
		switch {
		case err != nil:
			// The end of the context breaks the pipes, and is then the better reason.
			if cause := x.Cause(); cause != nil {
				err = cause
			}
			_ = t.Close()
			return nil, err
		case x.tunnels(rsp.StatusCode):
			// r may have read the first bytes of the tunnel together with the headers, so the tunnel goes on with r.
			t.in, rsp.Body, rsp.ContentLength = r, t, -1
		case rsp.StatusCode < http.StatusOK:
			_ = Inform(x, rsp.StatusCode, rsp.Header)
			continue
		default:
			// Closing the body must also close the connection on which the handler writes.
			rsp.Body = struct {
				io.Reader
				io.Closer
			}{rsp.Body, t}
		}
		return rsp, nil
	}
}

func (t *hijackedTunnel) Read(p []byte) (int, error) { return t.in.Read(p) }

// Close also ends the handler context.
func (t *hijackedTunnel) Close() error {
	t.x.Cancel(nil)
	return t.hijackedConn.Close()
}

// hijackedConn is one end of an in-memory connection that consists of two pipes, so that each direction
// can be closed separately.
type hijackedConn struct {
	net.Conn          // the direction to this end
	out      net.Conn // the direction to the other end
	x        *handled
}

func (c *hijackedConn) Write(p []byte) (int, error)        { return c.out.Write(p) }
func (c *hijackedConn) CloseWrite() error                  { return c.out.Close() }
func (c *hijackedConn) Close() error                       { return errors.Join(c.out.Close(), c.Conn.Close()) }
func (c *hijackedConn) RemoteAddr() net.Addr               { return address(c.x.req.RemoteAddr) }
func (c *hijackedConn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

// LocalAddr returns the address at which the client has connected.
func (c *hijackedConn) LocalAddr() net.Addr {
	if local, ok := c.x.Value(http.LocalAddrContextKey).(net.Addr); ok {
		return local
	}
	return address("")
}

// SetDeadline sets the deadline of reads on one pipe and that of writes on the other one.
func (c *hijackedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetReadDeadline(t), c.out.SetWriteDeadline(t))
}

// address is the address of a TCP connection as text. It implements [net.Addr].
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
