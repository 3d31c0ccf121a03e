package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Credentials are the gRPC credentials for one server. They are safe for concurrent use.
type Credentials struct {
	files  Files
	server Server
}

var _ credentials.TransportCredentials = (*Credentials)(nil)

// New returns credentials for s. It reads the files once, to validate them. The error is
// an [Error].
func New(f Files, s Server) (*Credentials, error) {
	if err := f.Check(s); err != nil {
		return nil, err
	}
	if _, err := f.read(s); err != nil {
		return nil, err
	}
	return &Credentials{f, s}, nil
}

// Expected returns the name that the server must prove.
func (c *Credentials) Expected() string {
	if c.server.Identity != "" {
		return c.server.Identity
	}
	return c.server.Name
}

// ClientHandshake completes a TLS handshake on conn. Until the server has sent data, the
// errors of the returned connection are about the handshake, too. [FindError] finds their
// text in an error of gRPC.
func (c *Credentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
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

// preface is the HTTP/2 connection preface of a client, with empty SETTINGS.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// Probe completes a TLS handshake on conn with an HTTP/2 server and verifies both
// certificates. The error is an [Error]. conn cannot be used afterwards.
func (c *Credentials) Probe(ctx context.Context, conn net.Conn) error {
	h, refused := c.handshake(ctx, conn)
	if refused != nil {
		return refused
	}
	// With TLS 1.3, a server verifies the client certificate after the handshake of
	// the client. It has accepted it once it sends data.
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := &secured{Conn: h.conn, handshake: h}
	_, err := s.Write([]byte(preface))
	if err == nil {
		_, err = s.Read(make([]byte, 1))
	}
	if errors.As(err, &refused) {
		return refused
	}
	return nil // a silent server is detected by gRPC
}

// Speaks reports whether the server at conn uses TLS. It does not verify the certificate.
func Speaks(ctx context.Context, conn net.Conn) bool {
	anybody := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // no data is sent
	return tls.Client(conn, anybody).HandshakeContext(ctx) == nil
}

// ServerHandshake returns an error, because these are credentials of a client.
func (*Credentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("trust: a server needs credentials of its own")
}

// Info returns the name and version of the security protocol.
func (*Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns c, which is immutable.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName returns an error, because [Server] has the name.
func (*Credentials) OverrideServerName(string) error {
	return errors.New("trust: the server has the name that it was given")
}
