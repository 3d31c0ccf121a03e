package h1

import (
	"io"
	"net"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// tunnel sends the headers of rsp, which turns the connection into a tunnel, such as a WebSocket. It
// then copies bytes in both directions, until both have ended; see [message.Tunnel].
func (c *ServerConn) tunnel(r *request, rsp *http.Response) error {
	upstream := rsp.Body.(io.ReadWriteCloser) //nolint:errcheck,forcetypeassert // see message.Exchange
	// Bytes of the body would otherwise become the first bytes of the tunnel.
	if !c.endBody(r, false) {
		return errEarlySwitch
	}
	// The length -1 marks no end: the tunnel ends with the connection.
	c.start(r, rsp.StatusCode, statusLine(rsp), rsp.Header, -1, nil, false) // the tunnel follows
	c.stopReadAhead()
	c.slot.Enter(phaseTunnel)
	if err := c.out.flush(); err != nil {
		return err
	}
	c.out.end()
	return message.Tunnel(r, tunnelEnd{&c.source, func() { c.abort(net.ErrClosed) }}, upstream)
}

// tunnelEnd is a connection that has become a tunnel: the client's on a server, or a response
// body on a client.
type tunnelEnd struct {
	*source
	close func()
}

// Read returns the buffered bytes first, and releases the buffer once it is empty, because later bytes go
// directly to p. An interruption that was meant for a read before the tunnel does not end the tunnel.
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

// Write writes to the connection. An error ends the tunnel.
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
