package trust

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
)

// handshake is the state of a client's TLS handshake.
type handshake struct {
	expected string
	conn     *tls.Conn
	asked    atomic.Bool // whether the server requested the client certificate
	shown    bool        // whether there is a certificate to send
}

// handshake performs a TLS handshake on conn. The files are read again, because they may have been renewed.
func (c *Credentials) handshake(ctx context.Context, conn net.Conn) (*handshake, *Error) {
	h := &handshake{expected: c.Expected()}
	// tapctl has obtained this identity itself, and has no files for it.
	if c.own != nil {
		cfg := c.own.Client(c.server.Name, c.server.Identity, "h2")
		// The wrapper records that the server has asked for a certificate.
		certificate := cfg.GetClientCertificate
		h.shown = true
		cfg.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			h.asked.Store(true)
			return certificate(request)
		}
		return h, h.complete(ctx, conn, cfg)
	}
	p, err := c.files.read(c.server)
	if err != nil {
		return nil, h.explain(err)
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, // older versions send the client certificate in cleartext
		ServerName: c.server.Name, RootCAs: p.roots, NextProtos: []string{"h2"},
	}
	// The verifier's configuration replaces the one above.
	if p.verifier != nil {
		cfg = p.verifier.Client(c.server.Name, c.server.Identity, "h2")
	}
	h.shown = p.cert != nil
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		h.asked.Store(true)
		// An empty certificate means that there is none. The server may still accept the client.
		if p.cert == nil {
			return new(tls.Certificate), nil
		}
		return p.cert, nil
	}
	return h, h.complete(ctx, conn, cfg)
}

// complete completes the handshake on conn.
func (h *handshake) complete(ctx context.Context, conn net.Conn, cfg *tls.Config) *Error {
	h.conn = tls.Client(conn, cfg)
	if err := h.conn.HandshakeContext(ctx); err != nil {
		return h.explain(err)
	}
	return nil
}

// secured is a client's TLS connection after its handshake. Until it has received data, the
// server may still reject the client certificate. Until then, errors from Read and Write become
// an [Error] with advice, unless this process closed the connection or a timeout expired.
type secured struct {
	*tls.Conn

	handshake *handshake
	received  atomic.Bool // the server has sent data, so it has accepted the client certificate
}

// Read notes that data have arrived, and adds advice to an error.
func (s *secured) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	// Any data prove that the server has accepted the certificate.
	if n > 0 {
		s.received.Store(true)
	}
	return n, s.explain(err)
}

func (s *secured) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, s.explain(err)
}

// explain returns err, with advice if the server may have rejected the client certificate.
func (s *secured) explain(err error) error {
	if err == nil || s.received.Load() || isOurs(err) {
		return err
	}
	return marked{s.handshake.explain(err)}
}
