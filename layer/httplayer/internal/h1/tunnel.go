package h1

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// tunnel sends the headers of rsp, which turns the connection into a tunnel. It then copies
// bytes in both directions; see [message.Tunnel].
func (c *ServerConn) tunnel(r *request, rsp *http.Response) error {
	upstream := rsp.Body.(io.ReadWriteCloser) //nolint:errcheck,forcetypeassert // see message.Exchange
	if !c.endBody(r, false) {
		return errEarlySwitch
	}
	c.start(r, rsp.StatusCode, rsp.Header, -1, nil, false)
	c.stopReadAhead()
	c.slot.Enter(phaseTunnel)
	if err := c.out.flush(); err != nil {
		return err
	}
	c.out.end()
	return message.Tunnel(r, tunnelEnd{&c.source, func() { c.abort(net.ErrClosed) }}, upstream)
}

// tunnelEnd is a connection that has become a tunnel: that of the client on a server, or the body
// of a response on a client.
type tunnelEnd struct {
	*source
	close func()
}

// Read returns the buffered bytes first.
func (t tunnelEnd) Read(p []byte) (int, error) {
	if unread := t.unread(); len(unread) > 0 {
		n := copy(p, unread)
		t.r += n
		t.release()
		return n, nil
	}
	for {
		n, err := t.read(p)
		if err != errInterrupted { //nolint:errorlint // set by this package
			return n, err
		}
	}
}

func (t tunnelEnd) Write(p []byte) (int, error) {
	n, err := t.conn.Write(p)
	if err != nil {
		err = t.failed(err)
	}
	return n, err
}

// CloseWrite closes the sending half of the connection.
func (t tunnelEnd) CloseWrite() error { return message.CloseWrite(t.conn) }

// Close closes the connection. A Read in progress fails, but may still write to its buffer
// after Close has returned.
func (t tunnelEnd) Close() error {
	t.close()
	return nil
}

// hijackedConn is a connection that a handler has hijacked.
type hijackedConn struct {
	message.AheadConn
	closed chan struct{}
	end    func() // closes closed, so that Serve returns
}

// detach returns the connection for use by other code. Its Read first returns the unread
// bytes. detach clears the deadlines. After that the ServerConn does not interrupt reads on
// the connection.
func (c *ServerConn) detach() (*hijackedConn, error) {
	if cause := c.stop.Load(); cause != nil {
		return nil, *cause
	}
	h := &hijackedConn{AheadConn: message.AheadConn{Conn: c.conn, Ahead: bytes.Clone(c.unread())}, closed: make(chan struct{})}
	h.end = sync.OnceFunc(func() { close(h.closed) })
	c.drop()
	c.out.end()
	c.slot.Enter(phaseTunnel)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detached = h
	_ = c.conn.SetDeadline(time.Time{})
	return h, nil
}

// Close closes the connection, and makes Serve return. It is part of [net.Conn].
func (c *hijackedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
