package h1

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/gotower/gotower/internal/panics"
)

var errNoTunnel = errors.New("the response of a tunnel has no Upgrade field or no writable body")

// closeWrite closes the sending half of conn. It returns http.ErrNotSupported if conn has
// no CloseWrite method.
func closeWrite(conn any) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// tunnel sends the headers of rsp, which turns the connection into a tunnel. It then copies
// bytes in both directions. It returns when both directions have ended, one has failed, or
// the context of the request ends.
func (c *ServerConn) tunnel(r *request, rsp *http.Response) error {
	upstream, ok := rsp.Body.(io.ReadWriteCloser)
	if !ok || rsp.StatusCode == http.StatusSwitchingProtocols && upgradeOf(rsp.Header) == "" {
		return errNoTunnel
	}
	if err := c.start(r, rsp.StatusCode, rsp.Header, -1, nil); err != nil {
		return err
	}
	r.keep = false
	c.stopReadAhead()
	c.tunnels = true
	if err := c.out.flush(); err != nil {
		return err
	}
	c.out.end()
	stop := r.AfterFunc(func() { _ = panics.Contain(func() { _ = upstream.Close() }) })
	defer stop()

	carry := func(dst io.Writer, src io.Reader) error {
		return panics.Do("tunnel", func() error {
			if err := copyTunnel(dst, src); err != nil {
				return err
			}
			return closeWrite(dst)
		})
	}
	up := make(chan error, 1)
	go func() {
		err := carry(upstream, tunnelSource{&c.source})
		if err != nil {
			c.abort(err)
		}
		up <- err
	}()
	err := carry(tunnelSink{c.conn}, upstream)
	if err != nil {
		c.abort(err)
	}
	return errors.Join(err, <-up)
}

func copyTunnel(dst io.Writer, src io.Reader) error {
	space := getBuffer(&bigBuffers)
	defer space.put()
	for {
		n, err := src.Read(space.b)
		if n > 0 {
			if _, err := dst.Write(space.b[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tunnelSource reads the bytes of a tunnel from a source. It returns the buffered bytes
// first.
type tunnelSource struct{ *source }

func (s tunnelSource) Read(p []byte) (int, error) {
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

type tunnelSink struct{ conn net.Conn }

func (s tunnelSink) Write(p []byte) (int, error) { return s.conn.Write(p) }
func (s tunnelSink) CloseWrite() error           { return closeWrite(s.conn) }

// hijackedConn is a connection that a handler has hijacked. Its Read first returns the
// bytes that were received after the request, and then reads from the connection.
type hijackedConn struct {
	net.Conn
	ahead  []byte
	once   sync.Once
	closed chan struct{}
}

// Read is part of [net.Conn].
func (c *hijackedConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Close is part of [net.Conn].
func (c *hijackedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// CloseWrite closes the sending half. It returns an error if the connection does not
// support this.
func (c *hijackedConn) CloseWrite() error { return closeWrite(c.Conn) }

// NetConn returns the underlying connection.
func (c *hijackedConn) NetConn() net.Conn { return c.Conn }
