package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Credentials are the gRPC transport credentials of a client for one server. They are safe
// for concurrent use. Create them with [New].
type Credentials struct {
	files  Files
	own    *identity.Identity // used instead of files if it is not nil
	server Server
}

var _ credentials.TransportCredentials = (*Credentials)(nil)

// New returns credentials for the server s with the files f. It reads the files once to validate
// them. Errors are of type [*Error].
func New(f Files, s Server) (*Credentials, error) {
	if err := f.Check(s); err != nil {
		return nil, err
	}
	if _, err := f.read(s); err != nil {
		return nil, err
	}
	return &Credentials{files: f, server: s}, nil
}

// FromIdentity returns credentials for a connection to the server s. The client proves itself
// with its certificate, and verifies the server with its trust anchors. s.Identity must be set.
func FromIdentity(client *identity.Identity, s Server) *Credentials {
	return &Credentials{own: client, server: s}
}

// Expected returns the name that the server must prove: the field Identity of its
// [Server], or the field Name if Identity is empty.
func (c *Credentials) Expected() string {
	if c.server.Identity != "" {
		return c.server.Identity
	}
	return c.server.Name
}

// ClientHandshake completes a TLS handshake on conn. With TLS 1.3, a server may reject the client
// after the client has completed the handshake. Therefore an error from Read or Write counts as a
// handshake error until the server has sent data. [FindError] finds such an error's text in a
// gRPC error.
func (c *Credentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// The server name is that of c, not the one of gRPC.
	h, err := c.handshake(ctx, conn)
	if err != nil {
		return nil, nil, marked{err}
	}
	// gRPC's own credentials require ALPN, which linkerd's proxies do not support.
	return &secured{Conn: h.conn, handshake: h}, credentials.TLSInfo{
		State:          h.conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// preface is the HTTP/2 connection preface of a client, with an empty SETTINGS frame.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Probe completes a TLS handshake with an HTTP/2 server on conn. It then waits for data from the
// server, which show that the server has accepted the client certificate. It returns an [Error]
// if the server or the client rejects the other side. If the server sends nothing before ctx
// ends, it returns nil. conn cannot be used afterwards.
func (c *Credentials) Probe(ctx context.Context, conn net.Conn) error {
	h, refused := c.handshake(ctx, conn)
	// refused is set if either side has rejected the other.
	if refused != nil {
		return refused
	}
	// With TLS 1.3, a server verifies the client certificate after the client's handshake. It has
	// accepted it once it sends data.
	// A deadline in the past ends a Read that is waiting.
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := &secured{Conn: h.conn, handshake: h}
	// The server answers this with its own SETTINGS.
	_, err := s.Write([]byte(preface))
	if err == nil {
		_, err = s.Read(make([]byte, 1))
	}
	if errors.As(err, &refused) {
		return refused
	}
	return nil // a silent server is detected by gRPC
}

// Speaks reports whether a TLS handshake on conn succeeds. It does not verify the server
// certificate, and sends no application data.
func Speaks(ctx context.Context, conn net.Conn) bool {
	unverified := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // no data is sent
	return tls.Client(conn, unverified).HandshakeContext(ctx) == nil
}

// ServerHandshake returns an error, because these are credentials for a client.
func (*Credentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("trust: a server needs credentials of its own")
}

// Info returns "tls" as the security protocol.
func (*Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns c itself, because c is immutable.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName returns an error, because the server name is the one in the [Server]
// that New got.
func (*Credentials) OverrideServerName(string) error {
	return errors.New("trust: the server has the name that it was given")
}
