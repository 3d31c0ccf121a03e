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

// The Endpoint dials a wire, TLS included, and passes it to net/http in the
// context of NewClientConn. net/http then uses cleartext, and one transport
// serves every protocol.
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
		// do not change bodies
		DisableCompression: true,
		// As in http.DefaultTransport: the body is sent after that time.
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
	if p == http2 {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.HTTP2 = &http.HTTP2Config{
			// Limits the memory for a slow reader. The default of net/http is 4
			// MiB.
			MaxReceiveBufferPerStream: 128 << 10,
		}
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return t
}

// connect makes a connection. A failure is a *peerError.
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
		w.rest.state.Store(restQuiet) // no request was sent
	}
	// net/http needs an address, but does not dial.
	cc, err := t.NewClientConn(context.WithValue(ctx, wireKey{}, w), "http", "endpoint:80")
	if err != nil {
		_ = w.Close()
		return nil, nil, &peerError{err}
	}
	return cc, w, nil
}

// dial makes the connection, TLS included. It returns a panic of a callback as
// an error, because connect runs on a goroutine of the Endpoint.
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

// secure does the TLS handshake. With a choice of protocols its error names the
// missing one.
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

// errNotPicked reports a handshake without the required protocol.
var errNotPicked = errors.New("tls")

// withoutProtocol reports whether the server answered the handshake, but does
// not support the offered protocol. It compares the text of the alert, because
// crypto/tls does not export its type. A test checks the text.
func withoutProtocol(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error() == "tls: no application protocol"
	}
	return errors.Is(err, errNotPicked)
}
