package httplayer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"slices"

	"github.com/gotower/gotower/internal/panics"
)

// dial connects to the Endpoint's address. With [WithTLS] it also does the TLS handshake, in
// which it offers the given protocols. If the dial function or a TLS callback panics, dial
// returns the panic as an error, because a panic on this goroutine would end the process.
func (e *Endpoint) dial(ctx context.Context, offers ...string) (conn net.Conn, state *tls.ConnectionState, err error) {
	defer panics.Recover(&err)
	conn, err = e.opts.dial(ctx, "tcp", e.addr)
	switch {
	case err != nil:
		return nil, nil, err
	case conn == nil:
		return nil, nil, errNoConn
	case e.opts.tls != nil:
		if conn, err = e.secure(ctx, conn, offers); err != nil {
			return nil, nil, err
		}
	}
	// The dial function may have done the TLS handshake itself.
	if secure, ok := conn.(*tls.Conn); ok {
		s := secure.ConnectionState()
		state = &s
	}
	return conn, state, nil
}

var errNoConn = errors.New("the dial function returned neither a connection nor an error")

// secure does a TLS handshake on conn, in which it offers the given protocols by ALPN, the preferred
// one first. If the server supports none of them, it returns errNotH2 or errNotH1, depending on which
// was preferred, so that the caller can try the other version. It closes conn if it fails.
func (e *Endpoint) secure(ctx context.Context, conn net.Conn, offers []string) (net.Conn, error) {
	cfg := e.opts.tls.Clone()
	cfg.NextProtos = offers
	// done: conn is passed to the caller. Otherwise it is closed, also after a panic.
	secure, done := tls.Client(conn, cfg), false
	defer func() {
		if !done { // a callback of cfg may have panicked
			_ = conn.Close()
		}
	}()
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	err := secure.HandshakeContext(ctx)
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(secure.ConnectionState(), err)
	}
	if err == nil {
		// "" from a server without ALPN, which means HTTP/1.1.
		got := secure.ConnectionState().NegotiatedProtocol
		done = slices.Contains(offers, cmp.Or(got, http1.String()))
	}
	switch {
	case done:
		return secure, nil
	case err != nil && !withoutProtocol(err):
		return nil, err
	case offers[0] == http2.String():
		return nil, errNotH2
	}
	return nil, errNotH1
}

// withoutProtocol reports whether err is the TLS alert from a server that does not support the
// offered protocol. It compares the text, because crypto/tls does not export the alert's type. A
// test checks the text.
func withoutProtocol(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && op.Err.Error() == "tls: no application protocol"
}
