package layertest

import (
	"errors"
	"io"
	"net"
	"time"
)

// conn is one end of a connection: it reads from one stream and writes to the
// other.
type conn struct {
	network       string
	in, out       *stream
	local, remote net.Addr
}

// newConns returns the two ends of a connection.
func newConns(network string, local, remote net.Addr) (near, far *conn) {
	there, back := newStream(), newStream()
	return &conn{network, back, there, local, remote}, &conn{network, there, back, remote, local}
}

// Read leaves io.EOF bare, as net does; every other error says where.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.fail("read", err)
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if err != nil {
		err = c.fail("write", err)
	}
	return n, err
}

// Close ends both directions. Bytes written before can still be read at the
// other end.
func (c *conn) Close() error {
	if !c.in.stopReading() {
		return c.fail("close", net.ErrClosed)
	}
	c.out.stopWriting(net.ErrClosed)
	return nil
}

// CloseWrite ends one direction: the other end reads to the end, and may go
// on writing.
func (c *conn) CloseWrite() error {
	if !c.out.stopWriting(errHalfClosed) {
		return c.fail("close", net.ErrClosed)
	}
	return nil
}

// reset breaks the connection off at both ends.
func (c *conn) reset() {
	c.in.reset()
	c.out.reset()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	if !c.in.setDeadline(&c.in.reader, t) {
		return c.fail("set", net.ErrClosed)
	}
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if !c.out.setDeadline(&c.out.writer, t) {
		return c.fail("set", net.ErrClosed)
	}
	return nil
}

func (c *conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Source: c.local, Addr: c.remote, Err: err}
}
