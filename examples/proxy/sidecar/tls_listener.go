package sidecar

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// withOptionalTLS returns a function that lets an HTTP server's listener accept both cleartext and
// TLS. Clients may use HTTP/1 or HTTP/2 over TLS without ALPN, because the mesh's proxies do.
func withOptionalTLS(cfg *tls.Config) func(net.Listener) net.Listener {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2", "http/1.1"}
	return func(l net.Listener) net.Listener { return &optionalListener{l, cfg} }
}

// optionalListener accepts cleartext and TLS. A connection uses TLS if the client begins a
// handshake.
type optionalListener struct {
	net.Listener
	cfg *tls.Config
}

// Accept does not read from the connection, so a slow client does not block it.
func (l *optionalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &optionalConn{Conn: conn, cfg: l.cfg, peeked: &peekedConn{conn, bufio.NewReaderSize(conn, 1<<10)}}, nil
}

// optionalConn detects TLS at its first Read, so that the HTTP server's header timeout also limits
// the handshake. It is not a *tls.Conn, because net/http accepts HTTP/2 on a *tls.Conn only with
// ALPN.
type optionalConn struct {
	net.Conn
	cfg    *tls.Config
	peeked *peekedConn
	detect sync.Once
	err    error
	secure atomic.Pointer[tls.Conn] // nil: cleartext, or not detected yet
}

// Read detects on the first call whether the client uses TLS, and then reads decrypted bytes or the plain ones.
func (c *optionalConn) Read(p []byte) (int, error) {
	// The detection runs once, in the server's first Read, and blocks only this connection.
	c.detect.Do(c.detectTLS)
	switch secure := c.secure.Load(); {
	case c.err != nil:
		return 0, c.err
	case secure != nil:
		return secure.Read(p)
	}
	return c.peeked.Read(p)
}

// detectTLS reads the first byte, and performs the TLS handshake if the client uses TLS.
func (c *optionalConn) detectTLS() {
	first, err := c.peeked.r.Peek(1)
	// An error, or cleartext: c.secure stays nil.
	if c.err = err; err != nil || first[0] != recordHandshake {
		return
	}
	secure := tls.Server(c.peeked, c.cfg)
	// Read has no context that could end the handshake.
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	if c.err = secure.HandshakeContext(ctx); c.err != nil {
		_ = c.Conn.Close() // because net/http would respond in cleartext
		return
	}
	c.secure.Store(secure)
}

// Write encrypts the bytes if TLS was detected.
func (c *optionalConn) Write(p []byte) (int, error) {
	if secure := c.secure.Load(); secure != nil {
		return secure.Write(p)
	}
	return c.Conn.Write(p)
}

// CloseWrite closes the connection for writing, if that is supported.
func (c *optionalConn) CloseWrite() error {
	// TLS sends an alert first.
	if secure := c.secure.Load(); secure != nil {
		return secure.CloseWrite()
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close also tells the client of the end if TLS was detected.
func (c *optionalConn) Close() error {
	if secure := c.secure.Load(); secure != nil {
		return secure.Close()
	}
	return c.Conn.Close()
}
