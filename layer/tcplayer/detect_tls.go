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

// TLSServers are the servers that [DetectTLS] chooses from. What one that is nil
// would have to serve is reset.
type TLSServers struct {
	Terminate   Server // what asked for one of our names by TLS, in clear from here
	Passthrough Server // TLS for other names, or for none: as it came
	Cleartext   Server // all that is not TLS
}

// DetectTLS is the [Server] that tells TLS by what a client says first, and by
// the name that it asks for (SNI) whether it is for us: then TLS ends here, by
// cfg, and what is inside goes to Local, which finds the client's certificates
// with [TLSState]. Other TLS is passed on unchanged. Whether a name is ours is
// what local says, to which it is given in lower case; see [MatchServerName]. With a nil
// local none is; with a nil cfg, handshakes for those that are fail.
//
// It looks at up to 8 192 bytes, over several records if need be; TLS of which
// no name was found by then is passed on. A client that has not said enough
// after 10 s ([WithDetectTimeout]) is reset. One that then takes as long to shake
// hands is closed, and so is one that shakes them in vain, which is told why.
//
// Admission: that of the server that is chosen. A refusal leaves the connection
// open and unread, where it can, as in [Detect]; after TLS it cannot. Ready waits
// until one of the servers is.
//
// Cancellation: ctx ends the looking and the shaking of hands. The connection is
// reset then, or closed.
//
// Body: a read deadline that the connection had is gone afterwards.
//
// Errors: those of the server; or a [layer.Error] with [layer.ErrTimeout],
// [layer.ErrNoRoute], [io.ErrUnexpectedEOF] from a client that left without a
// word, or what crypto/tls says.
//
// Cost: up to 16 KiB and two system calls for each connection, and what TLS
// costs.
func DetectTLS(cfg *tls.Config, local func(name string) bool, to TLSServers, opts ...DetectOption) Server {
	if local == nil {
		local = MatchServerName()
	}
	if cfg == nil {
		cfg = &tls.Config{} // crypto/tls refuses each client, where with nil it panics
	}
	return &detectTLS{
		choice: newChoice(to.Terminate, to.Passthrough, to.Cleartext), detectOptions: newDetectOptions(opts),
		to: to, local: local, cfg: cfg,
	}
}

// MatchServerName says of a name whether it is one of names, in any case. An empty one is
// left out, as of an identity that has no server name: TLS without a name is
// nobody's in particular.
func MatchServerName(names ...string) func(name string) bool {
	ours := make(map[string]bool, len(names))
	for _, name := range names {
		ours[strings.ToLower(name)] = name != ""
	}
	return func(name string) bool { return ours[name] }
}

// mostHello is what DetectTLS looks at, as linkerd's proxy does.
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
	case errors.Is(err, io.EOF) && len(first) > 0: // that is all there will be, and it may be no TLS
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

// pass hands over what is not for us, or says which name nobody here has.
func (d *detectTLS) pass(ctx context.Context, conn, next net.Conn, name string) (ByteCount, error) {
	if d.to.Passthrough == nil {
		reset(next)
		reason := "nothing serves TLS for no name"
		if name != "" {
			reason = fmt.Sprintf("nothing serves TLS for %q", name)
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
		_ = conn.Close() // in good order: the client is to read why
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

// TLSState returns the state of the TLS connection that conn is, or is a wrapper
// of. It looks through wrappers that have NetConn.
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
	err = tls.Server(conn, &tls.Config{ //nolint:gosec // the handshake ends before a version is chosen
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHelloRead
		},
	}).Handshake()
	switch {
	case errors.Is(err, errHelloRead):
		return name, nil
	case conn.short:
		return "", io.ErrUnexpectedEOF
	}
	return "", errNotTLS
}

// helloConn is the connection of parseServerName. Its other methods are not
// called.
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
