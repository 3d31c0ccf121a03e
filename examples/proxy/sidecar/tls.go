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

// optionalTLS is the credentials of a server that accepts cleartext, and TLS without
// ALPN, which proxies of the mesh use. The server decides which clients are authorized.
type optionalTLS struct {
	credentials.TransportCredentials // cleartext
	cfg                              *tls.Config
}

func newOptionalTLS(cfg *tls.Config) credentials.TransportCredentials {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	return &optionalTLS{insecure.NewCredentials(), cfg}
}

// recordHandshake is the first byte of TLS. HTTP/2 begins with a letter.
const recordHandshake = 22

// detectTimeout is the time for the first byte, as in linkerd's proxy.
const detectTimeout = time.Second

// ServerHandshake detects TLS by the first byte.
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

// handshakeTimeout is the time for TLS and the HTTP/2 preface.
const handshakeTimeout = 10 * time.Second

func (o *optionalTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (o *optionalTLS) Clone() credentials.TransportCredentials {
	return &optionalTLS{o.TransportCredentials.Clone(), o.cfg.Clone()}
}

// peekedConn is a connection with buffered first bytes.
type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *peekedConn) Read(p []byte) (int, error) { return c.r.Read(p) }
