package sidecar

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// withOptionalTLS is optionalTLS for a server of HTTP: its clients come by TLS or
// in clear, and speak HTTP/1 or HTTP/2 in it whether they have agreed on that or
// not, as proxies of the mesh do not.
func withOptionalTLS(cfg *tls.Config) func(net.Listener) net.Listener {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2", "http/1.1"}
	return func(l net.Listener) net.Listener { return &optionalListener{l, cfg} }
}

type optionalListener struct {
	net.Listener
	cfg *tls.Config
}

func (l *optionalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &optionalConn{Conn: conn, cfg: l.cfg, seen: &seenConn{conn, bufio.NewReaderSize(conn, 1<<10)}}, nil
}

// optionalConn looks at the first byte of a client when somebody reads it: for as
// long as they wait for a header. It is no tls.Conn to the server, which would
// take HTTP/2 only from who has agreed on it.
type optionalConn struct {
	net.Conn
	cfg    *tls.Config
	seen   *seenConn
	looked sync.Once
	err    error
	secure atomic.Pointer[tls.Conn] // nil: in clear, or nothing was heard yet
}

func (c *optionalConn) Read(p []byte) (int, error) {
	c.looked.Do(c.look)
	switch secure := c.secure.Load(); {
	case c.err != nil:
		return 0, c.err
	case secure != nil:
		return secure.Read(p)
	}
	return c.seen.Read(p)
}

func (c *optionalConn) look() {
	first, err := c.seen.r.Peek(1)
	if c.err = err; err != nil || first[0] != recordHandshake {
		return
	}
	secure := tls.Server(c.seen, c.cfg)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWithin)
	defer cancel()
	if c.err = secure.HandshakeContext(ctx); c.err != nil {
		_ = c.Conn.Close() // nothing is to be said in clear
		return
	}
	c.secure.Store(secure)
}

func (c *optionalConn) Write(p []byte) (int, error) {
	if secure := c.secure.Load(); secure != nil {
		return secure.Write(p)
	}
	return c.Conn.Write(p)
}

// CloseWrite tells the client that nothing more comes.
func (c *optionalConn) CloseWrite() error {
	if secure := c.secure.Load(); secure != nil {
		return secure.CloseWrite()
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *optionalConn) Close() error {
	if secure := c.secure.Load(); secure != nil {
		return secure.Close()
	}
	return c.Conn.Close()
}
