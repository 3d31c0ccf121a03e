package grpclayer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// controlTLS is TLS for one connection. gRPC's own insists on ALPN, which
// proxies in front of a controller do not speak, and on an authority that is the
// name in the certificate.
type controlTLS struct {
	config *tls.Config
	until  time.Time // of the attempt to connect that this is for
	failed func(error)
}

// ClientHandshake ends with the attempt.
func (t *controlTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithDeadline(ctx, t.until)
	defer cancel()
	conn := tls.Client(raw, t.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		t.failed(err)
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ServerHandshake is not for clients.
func (t *controlTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpclayer: these credentials are a client's")
}

// Info names no server, so that the authority is free.
func (t *controlTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns a copy.
func (t *controlTLS) Clone() credentials.TransportCredentials {
	other := *t
	return &other
}

// OverrideServerName is gRPC's, which does not call it any more.
func (t *controlTLS) OverrideServerName(string) error { return nil }
