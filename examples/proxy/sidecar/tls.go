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

// optionalTLS are the credentials of a server whose clients come by TLS, as
// proxies of the mesh do without agreeing on a protocol, or in clear, as those
// of this machine may. Which of them may do what is for the server to decide.
type optionalTLS struct {
	credentials.TransportCredentials // in clear
	cfg                              *tls.Config
}

func newOptionalTLS(cfg *tls.Config) credentials.TransportCredentials {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	return &optionalTLS{insecure.NewCredentials(), cfg}
}

// recordHandshake is the first byte of TLS. HTTP/2 begins with a letter.
const recordHandshake = 22

// detectWithin is how long a client may take to say anything, as in linkerd's
// proxy.
const detectWithin = time.Second

// ServerHandshake looks at the first byte of a client.
func (o *optionalTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	r := bufio.NewReaderSize(conn, 1<<10)
	_ = conn.SetReadDeadline(time.Now().Add(detectWithin))
	first, err := r.Peek(1)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	// Not for ever, either: gRPC, which waits for the first words of HTTP/2, takes
	// the deadline away once they have come.
	_ = conn.SetReadDeadline(time.Now().Add(handshakeWithin))
	seen := &seenConn{conn, r}
	if first[0] != recordHandshake {
		return o.TransportCredentials.ServerHandshake(seen)
	}
	secure := tls.Server(seen, o.cfg)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeWithin)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return secure, credentials.TLSInfo{
		State:          secure.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// handshakeWithin is how long TLS, and the beginning of HTTP/2, may take.
const handshakeWithin = 10 * time.Second

func (o *optionalTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (o *optionalTLS) Clone() credentials.TransportCredentials {
	return &optionalTLS{o.TransportCredentials.Clone(), o.cfg.Clone()}
}

// seenConn is a connection of which the beginning was read.
type seenConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *seenConn) Read(p []byte) (int, error) { return c.r.Read(p) }
