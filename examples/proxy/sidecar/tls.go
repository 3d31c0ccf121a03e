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

// optionalTLS is the credentials of a gRPC server that accepts both cleartext and TLS. TLS
// clients need not use ALPN, because proxies of the mesh do not use it. The credentials
// accept every client. The tap server decides which clients are authorized.
type optionalTLS struct {
	credentials.TransportCredentials // for cleartext connections
	cfg                              *tls.Config
}

// newOptionalTLS returns credentials that accept cleartext, and TLS with the configuration
// cfg.
func newOptionalTLS(cfg *tls.Config) credentials.TransportCredentials {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	return &optionalTLS{insecure.NewCredentials(), cfg}
}

// recordHandshake is the first byte of a TLS connection. In cleartext, the first byte of an
// HTTP/2 connection is a letter.
const recordHandshake = 22

// detectTimeout is how long a connection may take to send its first byte, as in linkerd's
// proxy.
const detectTimeout = time.Second

// ServerHandshake reads the first byte of conn. If the client has begun a TLS handshake,
// ServerHandshake completes it. Otherwise the connection uses cleartext.
func (o *optionalTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	r := bufio.NewReaderSize(conn, 1<<10)
	_ = conn.SetReadDeadline(time.Now().Add(detectTimeout))
	first, err := r.Peek(1)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	// gRPC removes this deadline after the HTTP/2 preface.
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	seen := &peekedConn{conn, r}
	if first[0] != recordHandshake {
		return o.TransportCredentials.ServerHandshake(seen)
	}
	secure := tls.Server(seen, o.cfg)
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

// handshakeTimeout is how long a connection may take for the TLS handshake and the HTTP/2
// preface.
const handshakeTimeout = 10 * time.Second

func (o *optionalTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (o *optionalTLS) Clone() credentials.TransportCredentials {
	return &optionalTLS{o.TransportCredentials.Clone(), o.cfg.Clone()}
}

// peekedConn is a connection from which the first bytes have been read into the buffer of
// r. Read returns these bytes first.
type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *peekedConn) Read(p []byte) (int, error) { return c.r.Read(p) }
