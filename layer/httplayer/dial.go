package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// A wire is dialled here, TLS included, and handed to net/http by the context
// of NewClientConn. So net/http sees cleartext, and one transport does for
// every protocol.
type wireKey struct{}

func newTransport(p protocol) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			w, ok := ctx.Value(wireKey{}).(*wire)
			if !ok {
				return nil, errors.New("httplayer: dialled without a connection")
			}
			return w, nil
		},
		// Bodies go through as they are.
		DisableCompression: true,
		// As in http.DefaultTransport: then the body is sent unasked.
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
	if p == http2 {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.HTTP2 = &http.HTTP2Config{
			// What one reader who does not read can make us hold. net/http
			// would hold 4 MiB.
			MaxReceiveBufferPerStream: 128 << 10,
		}
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return t
}

// connect makes a connection. The error of one that cannot be made is a
// *peerError.
func (e *Endpoint) connect(ctx context.Context, t *http.Transport, p protocol) (*http.ClientConn, *wire, error) {
	conn, err := e.opts.dial(ctx, "tcp", e.addr)
	if err == nil && e.opts.tls != nil {
		conn, err = e.secure(ctx, conn, p)
	}
	if err != nil {
		return nil, nil, &peerError{err}
	}
	w := &wire{Conn: conn, over: make(chan struct{})}
	if secure, ok := conn.(*tls.Conn); ok {
		state := secure.ConnectionState()
		w.tls = &state
	}
	if p == http2 {
		w.frames = newFrames(e.wake.Wake)
	} else {
		w.rest.came = make(chan struct{}, 1)
		w.rest.state.Store(restQuiet) // the server was asked nothing
	}
	// The address is for net/http's own diallers.
	cc, err := t.NewClientConn(context.WithValue(ctx, wireKey{}, w), "http", "endpoint:80")
	if err != nil {
		_ = w.Close()
		return nil, nil, &peerError{err}
	}
	return cc, w, nil
}

// secure is the handshake of TLS. Where either protocol would do, it says which
// one does not.
func (e *Endpoint) secure(ctx context.Context, conn net.Conn, p protocol) (net.Conn, error) {
	conn, err := handshake(ctx, conn, e.opts.tls, p)
	switch {
	case e.opts.protocol.isFixed() || !withoutProtocol(err):
		return conn, err
	case p == http2:
		return nil, errNotH2
	}
	return nil, errNotH1
}

func handshake(ctx context.Context, conn net.Conn, cfg *tls.Config, p protocol) (net.Conn, error) {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{p.String()}
	secure := tls.Client(conn, cfg)
	err := secure.HandshakeContext(ctx)
	if err == nil {
		got := secure.ConnectionState().NegotiatedProtocol
		if got == p.String() || p == http1 && got == "" {
			return secure, nil
		}
		err = fmt.Errorf("%w: the server does not speak %v", errNotPicked, p)
	}
	_ = conn.Close()
	return nil, err
}

// errNotPicked is a handshake that succeeded, without the protocol.
var errNotPicked = errors.New("tls")

// withoutProtocol reports whether a handshake has shown that the server is there
// and does not speak what was offered. Its alert is of a type that crypto/tls
// does not export, so it is known by its text. Were that to change, the address
// would count as one that cannot be reached; a test would tell.
func withoutProtocol(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error() == "tls: no application protocol"
	}
	return errors.Is(err, errNotPicked)
}
