package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/gotower/gotower/internal/panics"
)

// dial connects to the address of the Endpoint. With [WithTLS] it also does the TLS
// handshake, in which it offers the protocol p. If the dial function or a TLS callback
// panics, dial returns the panic as an error, because a panic on this goroutine would end
// the process.
func (e *Endpoint) dial(ctx context.Context, p protocol) (conn net.Conn, state *tls.ConnectionState, err error) {
	defer panics.Recover(&err)
	conn, err = e.opts.dial(ctx, "tcp", e.addr)
	switch {
	case err != nil:
		return nil, nil, err
	case conn == nil:
		return nil, nil, errNoConn
	case e.opts.tls != nil:
		if conn, err = e.secure(ctx, conn, p); err != nil {
			return nil, nil, err
		}
	}
	if secure, ok := conn.(*tls.Conn); ok {
		s := secure.ConnectionState()
		state = &s
	}
	return conn, state, nil
}

var errNoConn = errors.New("the dial function returned neither a connection nor an error")

// secure does a TLS handshake on conn, in which it offers only the protocol p. If the server does
// not support p, it returns errNotH1 or errNotH2.
func (e *Endpoint) secure(ctx context.Context, conn net.Conn, p protocol) (net.Conn, error) {
	cfg := e.opts.tls.Clone()
	cfg.NextProtos = []string{p.String()}
	secure, done := tls.Client(conn, cfg), false
	defer func() {
		if !done { // a callback of cfg may have panicked
			_ = conn.Close()
		}
	}()
	err := secure.HandshakeContext(ctx)
	if err == nil {
		got := secure.ConnectionState().NegotiatedProtocol
		done = got == p.String() || p == http1 && got == ""
	}
	switch {
	case done:
		return secure, nil
	case err != nil && !withoutProtocol(err):
		return nil, err
	case p == http2:
		return nil, errNotH2
	}
	return nil, errNotH1
}

// withoutProtocol reports whether err is the TLS alert of a server that does not support the
// offered protocol. It compares the text, because crypto/tls does not export the type of the
// alert. A test checks the text.
func withoutProtocol(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && op.Err.Error() == "tls: no application protocol"
}
