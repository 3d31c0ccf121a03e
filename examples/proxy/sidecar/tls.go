package sidecar

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// optionalTLS lets a gRPC server accept both cleartext and TLS. TLS clients need not use ALPN,
// because the mesh's proxies do not. All clients are accepted, and the tap server decides what they
// may do.
type optionalTLS struct {
	credentials.TransportCredentials // for cleartext connections
	cfg                              *tls.Config
}

// newOptionalTLS returns credentials that accept cleartext as well as TLS with cfg.
func newOptionalTLS(cfg *tls.Config) credentials.TransportCredentials {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	return &optionalTLS{insecure.NewCredentials(), cfg}
}

// recordHandshake is a TLS connection's first byte. An HTTP/2 connection in cleartext begins with a
// letter.
const recordHandshake = 22

// detectTimeout is how long a connection may take to send its first byte, as in linkerd's proxy.
const detectTimeout = time.Second

// ServerHandshake performs a TLS handshake if the client begins one, and otherwise accepts
// cleartext.
func (o *optionalTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	r := bufio.NewReaderSize(conn, 1<<10)
	// A client that sends nothing must not occupy the server.
	_ = conn.SetReadDeadline(time.Now().Add(detectTimeout))
	first, err := r.Peek(1)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	// gRPC removes this deadline after the HTTP/2 preface.
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	// Peek has read ahead into r, so both protocols must continue to read from it.
	peeked := &peekedConn{conn, r}
	if first[0] != recordHandshake {
		return o.TransportCredentials.ServerHandshake(peeked)
	}
	secure := tls.Server(peeked, o.cfg)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return secure, credentials.TLSInfo{
		State:          secure.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// handshakeTimeout is how long a connection may take for the TLS handshake and the HTTP/2 preface.
const handshakeTimeout = 10 * time.Second

func (o *optionalTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (o *optionalTLS) Clone() credentials.TransportCredentials {
	return &optionalTLS{o.TransportCredentials.Clone(), o.cfg.Clone()}
}

// peekedConn returns bytes that were already read into r's buffer first.
type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *peekedConn) Read(p []byte) (int, error) { return c.r.Read(p) }
