package tcplayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// TLSServers are the servers of [DetectTLS]. If one is nil, its connections are reset.
type TLSServers struct {
	Terminate   Server // TLS for a local name, decrypted
	Passthrough Server // TLS for another name or no name, unchanged
	Cleartext   Server // connections without TLS
}

// DetectTLS returns a [Server] that reads the ClientHello of a client. If local
// accepts its server name (SNI, in lower case), it terminates TLS with cfg and passes
// the connection to Terminate, which gets the client certificate from [TLSState]. See
// [MatchServerName]. A nil local accepts no name. With a nil cfg each handshake fails.
//
// It reads up to 8 192 bytes. TLS without a server name in them goes to Passthrough. A
// client that sends too little in 10 s ([WithDetectTimeout]) is reset. The handshake
// has the same limit.
//
// Admission: the chosen server decides. A rejected connection stays open if no byte was
// read, as in [Detect]; after the handshake it is reset. Ready waits until one server
// is ready.
//
// Cancellation: ctx ends the detection and the handshake. Body: a read deadline is
// removed. Cost: up to 16 KiB, two system calls and the handshake.
//
// Errors: errors of the server are returned unchanged. Other errors are a [layer.Error]
// with [layer.ErrTimeout], [layer.ErrNoRoute], [io.ErrUnexpectedEOF] or the error of
// crypto/tls.
func DetectTLS(cfg *tls.Config, local func(name string) bool, to TLSServers, opts ...DetectOption) Server {
	if local == nil {
		local = MatchServerName()
	}
	if cfg == nil {
		cfg = &tls.Config{} // crypto/tls panics with a nil config
	}
	return &detectTLS{
		choice: newChoice(to.Terminate, to.Passthrough, to.Cleartext), detectOptions: newDetectOptions(opts),
		to: to, local: local, cfg: cfg,
	}
}

// MatchServerName returns a function that reports whether a name is one of names, ignoring
// case. It ignores an empty name, because TLS without a server name is for no identity.
func MatchServerName(names ...string) func(name string) bool {
	ours := make(map[string]bool, len(names))
	for _, name := range names {
		ours[strings.ToLower(name)] = name != ""
	}
	return func(name string) bool { return ours[name] }
}

// maxHello is the limit of linkerd's proxy.
const maxHello = 8 << 10

type detectTLS struct {
	choice
	detectOptions
	to    TLSServers
	local func(name string) bool
	cfg   *tls.Config
}

func (d *detectTLS) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "tls")
	case d.skips(ctx, conn):
		return serveNext(ctx, "tls", d.to.Cleartext, conn, conn)
	}
	enough := func(seen []byte) bool {
		_, err := parseServerName(seen)
		return !errors.Is(err, io.ErrUnexpectedEOF)
	}
	first, next, err := peekFirst(ctx, conn, peekSpec{max: maxHello, within: d.timeout, enough: enough})
	name, incomplete := parseServerName(first)
	switch {
	case errors.Is(err, io.EOF) && len(first) > 0: // no more bytes can come
		return serveNext(ctx, "tls", d.to.Cleartext, conn, next)
	case err != nil:
		return ByteCount{}, d.noBytesError(conn, "tls", "no ClientHello", err)
	case errors.Is(incomplete, errNotTLS):
		return serveNext(ctx, "tls", d.to.Cleartext, conn, next)
	}
	if incomplete != nil || !d.local(strings.ToLower(name)) {
		return d.pass(ctx, conn, next, name)
	}
	return d.terminate(ctx, next)
}

// pass serves a connection for another name, or returns an error with that name.
func (d *detectTLS) pass(ctx context.Context, conn, next net.Conn, name string) (ByteCount, error) {
	if d.to.Passthrough == nil {
		reset(next)
		reason := "no server for TLS without a server name"
		if name != "" {
			reason = fmt.Sprintf("no server for TLS with the name %q", name)
		}
		return ByteCount{}, &layer.Error{Layer: "tls", Kind: layer.ErrNoRoute, Reason: reason}
	}
	return serveNext(ctx, "tls", d.to.Passthrough, conn, next)
}

func (d *detectTLS) terminate(ctx context.Context, conn net.Conn) (ByteCount, error) {
	if d.to.Terminate == nil {
		return serveNext(ctx, "tls", nil, conn, conn)
	}
	secure := tls.Server(&eofConn{Conn: conn}, d.cfg)
	within, cancel := context.WithTimeout(ctx, d.timeout)
	err := secure.HandshakeContext(within)
	late := within.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil {
		e := &layer.Error{Layer: "tls", Reason: "handshake", Err: err}
		if late {
			e.Kind, e.Waited = layer.ErrTimeout, d.timeout
		}
		_ = conn.Close() // not reset, because the client must read the alert
		return ByteCount{}, e
	}
	t, err := d.to.Terminate.Call(ctx, secure)
	if errors.Is(err, layer.ErrNotReady) {
		return t, consumedError("tls", secure, err)
	}
	return t, err
}

// Describe shows the servers.
func (d *detectTLS) Describe() layer.Node {
	n := d.describe("tls", []string{"local", "pass", "clear"}, d.to.Terminate, d.to.Passthrough, d.to.Cleartext)
	n.State = layer.State{{Key: "timeout", Value: d.timeout.Round(time.Millisecond)}}
	return n
}

// TLSState returns the state of the TLS connection in conn. It looks through
// wrappers with NetConn.
func TLSState(conn net.Conn) (tls.ConnectionState, bool) {
	for ; conn != nil; conn = unwrap(conn) {
		if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
			return secure.ConnectionState(), true
		}
	}
	return tls.ConnectionState{}, false
}

var (
	// errNotTLS reports first bytes that crypto/tls rejects.
	errNotTLS = errors.New("not TLS")

	errHelloRead = errors.New("the ClientHello was read")
)

const (
	handshakeRecord = 22 // first byte of a record (RFC 8446, section 5.1)
	clientHello     = 1  // first byte of a handshake message (section 4)
)

// parseServerName returns the server name (SNI) of the ClientHello in the first
// bytes of a client, "" if it has none. crypto/tls reads the message. The error
// is io.ErrUnexpectedEOF if more bytes are needed, and errNotTLS otherwise.
func parseServerName(first []byte) (name string, err error) {
	for i, want := range [...]byte{0: handshakeRecord, 1: 3, 5: clientHello} {
		if want != 0 && i < len(first) && first[i] != want {
			return "", errNotTLS
		}
	}
	conn := &helloConn{rest: *bytes.NewReader(first)}
	err = tls.Server(conn, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHelloRead
		},
	}).HandshakeContext(context.Background())
	switch {
	case errors.Is(err, errHelloRead):
		return name, nil
	case conn.short:
		return "", io.ErrUnexpectedEOF
	}
	return "", errNotTLS
}

// helloConn is the connection of parseServerName. Its other methods are not called.
type helloConn struct {
	net.Conn
	rest  bytes.Reader
	short bool // more bytes were read than rest had
}

func (c *helloConn) Read(p []byte) (int, error) {
	n, err := c.rest.Read(p)
	c.short = err != nil
	return n, err
}

func (c *helloConn) Write(p []byte) (int, error) { return len(p), nil }
