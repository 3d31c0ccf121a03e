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

// TLSServers holds the servers of [DetectTLS]. A connection for a nil server is reset.
type TLSServers struct {
	Terminate   Server // TLS for a local name; receives the decrypted connection
	Passthrough Server // TLS for another name or without a name; receives the encrypted bytes
	Cleartext   Server // connections without TLS
}

// DetectTLS returns a [Server] that reads each client's ClientHello and passes the server name in
// it (SNI, in lower case) to local. If local returns true, DetectTLS terminates TLS with cfg and
// passes the connection to Terminate. [TLSState] then returns the client certificate. Use
// [MatchServerName] to make a function for local. If local is nil, no name is accepted, and with a
// nil cfg each handshake fails.
//
// It reads up to 8,192 bytes. TLS without a server name in these bytes goes to Passthrough. A
// client that sends no whole ClientHello within 10 s ([WithDetectTimeout]), or before it stops
// sending, goes to Cleartext, where [Detect] does not wait again. If Cleartext is nil, it is reset.
// The handshake has the same time limit.
//
// Admission: the chosen server decides. A rejected connection stays open if no byte was read, as in
// [Detect]. After the handshake it is reset. Ready returns nil if one server is ready, and
// otherwise waits for the last one that is not nil. Cancellation: when ctx ends, so do the
// detection and the handshake. Body: DetectTLS removes the read deadline from the connection. Cost:
// up to 16 KiB, two system calls and the handshake.
//
// Errors: errors from the server are returned unchanged. Other errors are a [layer.Error], which
// matches [layer.ErrTimeout], [layer.ErrNoRoute], [io.ErrUnexpectedEOF] or the error from
// crypto/tls.
func DetectTLS(cfg *tls.Config, local func(name string) bool, servers TLSServers, opts ...DetectOption) Server {
	if local == nil {
		local = MatchServerName()
	}
	if cfg == nil {
		cfg = &tls.Config{} // crypto/tls panics with a nil config
	}
	return &detectTLS{
		choice: newChoice(servers.Terminate, servers.Passthrough, servers.Cleartext), detectOptions: newDetectOptions(opts),
		servers: servers, local: local, cfg: cfg,
	}
}

// MatchServerName returns a function that reports whether names contains its argument. The
// argument must be in lower case; names may be in any case. The function returns false for "",
// because a client that sends no server name requests no particular identity.
func MatchServerName(names ...string) func(name string) bool {
	ours := make(map[string]bool, len(names))
	// "" stays false, even if it is in names.
	for _, name := range names {
		ours[strings.ToLower(name)] = name != ""
	}
	return func(name string) bool { return ours[name] }
}

// maxHello is the maximum number of bytes that DetectTLS reads, as in linkerd's proxy.
const maxHello = 8 << 10

// detectTLS is the Server that DetectTLS returns.
type detectTLS struct {
	choice
	detectOptions
	servers TLSServers
	local   func(name string) bool
	cfg     *tls.Config
}

// hello is the result of parsing a client's first bytes: their number, and what parseServerName
// returned for them.
type hello struct {
	size   int
	name   string
	failed error
}

// parse parses a client's first bytes, unless it has already parsed as many.
func (h *hello) parse(first []byte) {
	// Parsing again is only useful if more bytes have arrived.
	if len(first) != h.size {
		h.size = len(first)
		h.name, h.failed = parseServerName(first)
	}
}

// peekHello waits until a client has sent its ClientHello or other bytes, but no longer than
// timeout. It returns the parsed bytes, and a connection that returns them again. It returns the
// same errors as peekFirst.
func peekHello(ctx context.Context, conn net.Conn, timeout time.Duration) (h hello, next net.Conn, err error) {
	// Until the first byte has arrived, more bytes are needed.
	h.failed = io.ErrUnexpectedEOF
	// Any other result of parsing is final: a whole ClientHello, or bytes that are not TLS.
	enough := func(data []byte) bool {
		h.parse(data)
		return !errors.Is(h.failed, io.ErrUnexpectedEOF)
	}
	first, next, err := peekFirst(ctx, conn, peekSpec{max: maxHello, timeout: timeout, enough: enough})
	// The last bytes may have come with the error, so that enough has not seen them.
	h.parse(first)
	return h, next, err
}

// Call reads the ClientHello and passes the connection to one of the servers.
func (d *detectTLS) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "tls")
	case d.skips(ctx, conn):
		return serveNext(ctx, "tls", d.servers.Cleartext, conn, conn)
	}
	h, next, err := peekHello(ctx, conn, d.timeout)
	// The order matters: an incomplete hello goes to Cleartext if there is one, and is an error otherwise.
	switch {
	case d.servers.Cleartext != nil && errors.Is(err, io.EOF):
		return serveNext(ctx, "tls", d.servers.Cleartext, conn, next)
	case d.servers.Cleartext != nil && ctx.Err() == nil && isTimeout(err):
		d.logUndecided(ctx, conn, "TLS", h.size)
		// The value tells Detect that the client has had its time.
		return serveNext(context.WithValue(ctx, waitedKey{}, true), "tls", d.servers.Cleartext, conn, next)
	case err != nil:
		return ByteCount{}, d.noBytesError(conn, "tls", "no ClientHello", err)
	case errors.Is(h.failed, errNotTLS):
		return serveNext(ctx, "tls", d.servers.Cleartext, conn, next)
	}
	// The hello has no valid server name, or its name is that of another server.
	if h.failed != nil || !d.local(strings.ToLower(h.name)) {
		return d.pass(ctx, conn, next, h.name)
	}
	return d.terminate(ctx, next)
}

// pass passes a connection whose TLS names no server, or one for which local returns false, to
// Passthrough. If Passthrough is nil, pass resets the connection and returns an error with the
// name.
func (d *detectTLS) pass(ctx context.Context, conn, next net.Conn, name string) (ByteCount, error) {
	if d.servers.Passthrough == nil {
		// A reset tells the client that nothing was accepted, unlike a normal end.
		reset(next)
		reason := "no server for TLS without a server name"
		if name != "" {
			reason = fmt.Sprintf("no server for TLS with the name %q", name)
		}
		return ByteCount{}, &layer.Error{Layer: "tls", Kind: layer.ErrNoRoute, Reason: reason}
	}
	return serveNext(ctx, "tls", d.servers.Passthrough, conn, next)
}

// terminate does the TLS handshake and passes the decrypted connection to Terminate.
func (d *detectTLS) terminate(ctx context.Context, conn net.Conn) (ByteCount, error) {
	// Without a server, serveNext resets the connection.
	if d.servers.Terminate == nil {
		return serveNext(ctx, "tls", nil, conn, conn)
	}
	secure := tls.Server(newEOFConn(conn), d.cfg)
	// The handshake has the same time limit as the detection.
	handshakeCtx, cancel := context.WithTimeout(ctx, d.timeout)
	err := secure.HandshakeContext(handshakeCtx)
	// Only the limit counts as a timeout, not the end of ctx.
	timedOut := handshakeCtx.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil {
		e := &layer.Error{Layer: "tls", Reason: "handshake", Err: err}
		if timedOut {
			e.Kind, e.Waited = layer.ErrTimeout, d.timeout
		}
		_ = conn.Close() // not reset, because the client must read the alert
		return ByteCount{}, e
	}
	t, err := d.servers.Terminate.Call(ctx, secure)
	// The handshake has taken bytes, so no other server can have the connection.
	if errors.Is(err, layer.ErrNotReady) {
		return t, consumedError("tls", secure, err)
	}
	return t, err
}

// Describe shows the servers and the time limit.
func (d *detectTLS) Describe() layer.Node {
	n := d.describe("tls", []string{"local", "pass", "clear"}, d.servers.Terminate, d.servers.Passthrough, d.servers.Cleartext)
	n.State = layer.State{{Key: "timeout", Value: d.timeout.Round(time.Millisecond)}}
	return n
}

// TLSState returns the state of the TLS connection that conn is or wraps. It looks below
// wrappers with NetConn. It returns false if conn does not use TLS.
func TLSState(conn net.Conn) (tls.ConnectionState, bool) {
	for ; conn != nil; conn = unwrap(conn) {
		if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
			return secure.ConnectionState(), true
		}
	}
	return tls.ConnectionState{}, false
}

var (
	// errNotTLS reports that crypto/tls rejects the first bytes of a connection.
	errNotTLS = errors.New("not TLS")

	// errHelloRead ends the handshake once crypto/tls has parsed the ClientHello.
	errHelloRead = errors.New("the ClientHello was read")
)

// The bytes of TLS by which a ClientHello is recognized.
const (
	handshakeRecord = 22 // first byte of a TLS record of this type (RFC 8446, section 5.1)
	clientHello     = 1  // first byte of a handshake message of this type (section 4)
)

// parseServerName returns the server name (SNI) in the ClientHello at the start of first, or ""
// if there is none. crypto/tls parses it. The error is io.ErrUnexpectedEOF if more bytes are
// needed, and errNotTLS if the bytes are not a ClientHello.
func parseServerName(first []byte) (name string, err error) {
	// These bytes are the same in each ClientHello: the type of the record, its major version and the type
	// of the message. A 0 in the array means any value. The check rejects another protocol by its first
	// bytes, while crypto/tls would wait for more.
	for i, want := range [...]byte{0: handshakeRecord, 1: 3, 5: clientHello} {
		if want != 0 && i < len(first) && first[i] != want {
			return "", errNotTLS
		}
	}
	// GetConfigForClient is called when crypto/tls has parsed the ClientHello. The error that it returns ends the
	// handshake there. Nothing reaches the client, because helloConn discards what crypto/tls writes.
	conn := &helloConn{rest: *bytes.NewReader(first)}
	err = tls.Server(conn, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHelloRead
		},
	}).HandshakeContext(context.Background())
	// A hello that was parsed counts, even if bytes follow it that crypto/tls has not read.
	switch {
	case errors.Is(err, errHelloRead):
		return name, nil
	case conn.short:
		return "", io.ErrUnexpectedEOF
	}
	return "", errNotTLS
}

// helloConn is the connection from which crypto/tls reads in parseServerName. It
// implements only Read and Write, because crypto/tls calls no other method there.
type helloConn struct {
	net.Conn
	rest  bytes.Reader
	short bool // crypto/tls wanted more than rest, so that the ClientHello is not complete
}

// Read returns the next of the client's bytes, or io.EOF at their end, which it records in short.
func (c *helloConn) Read(p []byte) (int, error) {
	n, err := c.rest.Read(p)
	c.short = err != nil
	return n, err
}

// Write discards the alert that crypto/tls sends.
func (c *helloConn) Write(p []byte) (int, error) { return len(p), nil }
