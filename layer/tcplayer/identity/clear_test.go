package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer"
)

// recorded is what a peer got: on the wire, and out of TLS.
type recorded struct{ wire, inside bytes.Buffer }

// recording records the read bytes.
type recording struct {
	net.Conn

	to *bytes.Buffer
}

func (r recording) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.to.Write(p[:n])
	return n, err
}

// record serves one connection by peer, then reads what else there is. The
// record is complete when it comes.
func record(t *testing.T, peer func(conn net.Conn, inside *bytes.Buffer)) (addr string, out <-chan *recorded) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan *recorded, 1)
	go func() {
		defer l.Close()
		r := &recorded{}
		conn, err := l.Accept()
		if err == nil {
			c := recording{conn, &r.wire}
			peer(c, &r.inside)
			io.Copy(io.Discard, c)
			conn.Close()
		}
		done <- r
	}()
	return l.Addr().String(), done
}

// overTLS is a peer that keeps what a request is, and answers nothing.
func overTLS(cfg *tls.Config) func(net.Conn, *bytes.Buffer) {
	return func(conn net.Conn, inside *bytes.Buffer) {
		secure := tls.Server(conn, cfg)
		if secure.Handshake() != nil {
			return
		}
		for b := make([]byte, 4096); !bytes.Contains(inside.Bytes(), []byte(secret)); {
			n, err := secure.Read(b)
			inside.Write(b[:n])
			if err != nil {
				return
			}
		}
		conn.Close()
	}
}

const secret = "the-combination-of-the-safe"

// Where a peer does not prove its name, nothing of a request leaves: neither in
// clear, nor to the wrong one in TLS. Row 19 of the reliability criteria.
func TestHandshakeSendsNoCleartext(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	certs := func(cert tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	version := func(v uint16) *tls.Config {
		cfg := certs(a.pair(web, time.Hour))
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, v
		return cfg
	}
	asking := certs(a.pair(web, time.Hour))
	asking.ClientAuth = tls.RequestClientCert
	fresh := a.static(other)
	expired := a.static(other)
	expired.use(&certificate{a.pair(other, -time.Hour), time.Now().Add(-time.Hour)})
	clientOnly := a.pair(web, time.Hour, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })

	for name, tt := range map[string]struct {
		client *Identity
		peer   func(net.Conn, *bytes.Buffer)
		kind   error
		says   []string
	}{
		"in clear": {client: fresh, peer: func(conn net.Conn, _ *bytes.Buffer) {
			conn.Read(make([]byte, 1))
			io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		}, says: []string{"tls: first record does not look like a TLS handshake"}},
		"in clear, and first": {client: fresh, peer: func(conn net.Conn, _ *bytes.Buffer) {
			io.WriteString(conn, "220 ready when you are\r\n")
		}, says: []string{"tls: first record does not look like a TLS handshake"}},
		"hangs up": {client: fresh, peer: func(conn net.Conn, _ *bytes.Buffer) {
			conn.Read(make([]byte, 1))
			conn.Close()
		}},
		"another name":  {fresh, overTLS(certs(a.pair("db.default", time.Hour))), ErrPeerIdentity, []string{"expected " + web, "seen db.default"}},
		"a URI instead": {fresh, overTLS(certs(a.pair(spiffe, time.Hour))), ErrPeerIdentity, []string{"expected " + web, "seen " + spiffe}},
		"a wildcard":    {fresh, overTLS(certs(a.pair("*"+web[3:], time.Hour))), ErrPeerIdentity, []string{"expected " + web, "seen none"}},
		"expired": {fresh, overTLS(certs(a.pair(web, -time.Second))), ErrPeerIdentity,
			[]string{"expected " + web, "seen " + web, "certificate has expired"}},
		"another authority": {fresh, overTLS(certs(stranger.pair(web, time.Hour))), ErrPeerIdentity,
			[]string{"expected " + web, "seen " + web, "signed by unknown authority"}},
		"a client's certificate": {fresh, overTLS(certs(clientOnly)), ErrPeerIdentity, []string{"incompatible key usage"}},
		"TLS 1.2":                {client: fresh, peer: overTLS(version(tls.VersionTLS12)), says: []string{"protocol version not supported"}},
		"TLS 1.1":                {client: fresh, peer: overTLS(version(tls.VersionTLS11)), says: []string{"protocol version not supported"}},
		"TLS 1.0":                {client: fresh, peer: overTLS(version(tls.VersionTLS10)), says: []string{"protocol version not supported"}},
		"ours has expired":       {client: expired, peer: overTLS(asking), says: []string{"identity " + other + ": the certificate expired at "}},
	} {
		t.Run(name, func(t *testing.T) {
			for how, send := range senders {
				t.Run(how, func(t *testing.T) {
					addr, out := record(t, tt.peer)
					err := send(t, addr, tt.client.Client("", web))
					require.Error(t, err)
					if tt.kind != nil {
						require.ErrorIs(t, err, tt.kind)
					}
					for _, text := range tt.says {
						require.ErrorContains(t, err, text)
					}
					r := <-out
					assert.Empty(t, r.inside.String())
					assert.NotContains(t, r.wire.String(), secret)
					assert.NotContains(t, r.wire.String(), "POST")
				})
			}
		})
	}
	t.Run("as it should be", func(t *testing.T) {
		for how, send := range senders {
			addr, out := record(t, overTLS(certs(a.pair(web, time.Hour))))
			send(t, addr, fresh.Client("", web))
			r := <-out
			assert.Contains(t, r.inside.String(), secret, how)
			assert.NotContains(t, r.wire.String(), secret, how)
		}
	})
}

// senders send the secret, each in its way.
var senders = map[string]func(t *testing.T, addr string, cfg *tls.Config) error{
	"tcplayer": func(t *testing.T, addr string, cfg *tls.Config) error {
		_, err := sendText(t, addr, cfg, secret)
		return err
	},
	"httplayer": func(t *testing.T, addr string, cfg *tls.Config) error {
		ctx, cancel := context.WithTimeout(t.Context(), waits)
		defer cancel()
		e := httplayer.NewEndpoint(ctx, addr, httplayer.WithTLS(cfg), httplayer.WithConnectTimeout(waits))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/", strings.NewReader(secret))
		require.NoError(t, err)
		rsp, err := e.Call(ctx, req)
		if err == nil {
			rsp.Body.Close()
		}
		return err
	},
	"crypto/tls": func(t *testing.T, addr string, cfg *tls.Config) error {
		conn, err := tls.Dial("tcp", addr, cfg)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, secret); err != nil {
			return err
		}
		_, err = io.ReadAll(conn)
		return err
	},
}
