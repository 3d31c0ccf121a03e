package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
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
	conn, err := e.dial(ctx, p)
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

// dial makes the connection, TLS included. A panic of a callback becomes its error,
// because connect runs on a goroutine of the Endpoint.
func (e *Endpoint) dial(ctx context.Context, p protocol) (conn net.Conn, err error) {
	defer panics.Recover(&err)
	conn, err = e.opts.dial(ctx, "tcp", e.addr)
	switch {
	case err != nil:
		return nil, err
	case conn == nil:
		return nil, errNoConn
	case e.opts.tls == nil:
		return conn, nil
	}
	return e.secure(ctx, conn, p)
}

var errNoConn = errors.New("the dial function returned neither a connection nor an error")

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
	secure, done := tls.Client(conn, cfg), false
	defer func() {
		if !done { // a callback of cfg may have panicked
			_ = conn.Close()
		}
	}()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	got := secure.ConnectionState().NegotiatedProtocol
	if done = got == p.String() || p == http1 && got == ""; !done {
		return nil, fmt.Errorf("%w: the server does not speak %v", errNotPicked, p)
	}
	return secure, nil
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
