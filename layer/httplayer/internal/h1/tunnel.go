package h1

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var errNoTunnel = errors.New("the response of a tunnel has no Upgrade field or no writable body")

// tunnel sends the headers of rsp, which turns the connection into a tunnel. It then copies
// bytes in both directions; see [message.Tunnel].
func (c *ServerConn) tunnel(r *request, rsp *http.Response) error {
	upstream, ok := rsp.Body.(io.ReadWriteCloser)
	if !ok || rsp.StatusCode == http.StatusSwitchingProtocols && message.Upgrade(rsp.Header) == "" {
		return errNoTunnel
	}
	if !c.endBody(r, false) {
		return errEarlySwitch
	}
	if err := c.start(r, rsp.StatusCode, rsp.Header, -1, nil, false); err != nil {
		return err
	}
	c.stopReadAhead()
	c.slot.Enter(phaseTunnel)
	if err := c.out.flush(); err != nil {
		return err
	}
	c.out.end()
	return message.Tunnel(r, tunnelClient{c}, upstream)
}

// readTunnel reads the bytes of a tunnel. It returns the buffered bytes first.
func (s *source) readTunnel(p []byte) (int, error) {
	if unread := s.unread(); len(unread) > 0 {
		n := copy(p, unread)
		s.r += n
		s.release()
		return n, nil
	}
	for {
		n, err := s.read(p)
		if err != errInterrupted { //nolint:errorlint // set by this package
			return n, err
		}
	}
}

// tunnelClient is the connection of the client in a tunnel.
type tunnelClient struct{ conn *ServerConn }

func (t tunnelClient) Read(p []byte) (int, error)  { return t.conn.readTunnel(p) }
func (t tunnelClient) Write(p []byte) (int, error) { return t.conn.conn.Write(p) }
func (t tunnelClient) CloseWrite() error           { return message.CloseWrite(t.conn.conn) }

func (t tunnelClient) Close() error {
	t.conn.abort(net.ErrClosed)
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
