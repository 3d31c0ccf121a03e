package trust

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/trust/trusttest"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// waits is how long a test waits for an event.
const waits = 30 * time.Second

// serve answers the first byte of each connection with the name of the client,
// until the test ends.
func serve(t *testing.T, cfg *tls.Config) (addr string) {
	t.Helper()
	return listen(t, func(conn net.Conn) {
		c := tls.Server(conn, cfg)
		if c.HandshakeContext(t.Context()) != nil {
			return
		}
		if _, err := c.Read(make([]byte, len(preface))); err != nil {
			return
		}
		who, ok := identity.PeerIdentity(c.ConnectionState())
		if !ok {
			who = "nobody"
		}
		_, _ = io.WriteString(c, who)
	})
}

func listen(t *testing.T, each func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(waits))
			each(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// ask connects, and returns the client identity that the server reports.
func ask(t *testing.T, c *Credentials, addr string) (who string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waits)
	defer cancel()
	raw, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer raw.Close()
	conn, _, err := c.ClientHandshake(ctx, addr, raw)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, preface); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

func probe(t *testing.T, c *Credentials, addr string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waits)
	defer cancel()
	raw, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer raw.Close()
	return c.Probe(ctx, raw)
}

const (
	web    = "web.default.serviceaccount.identity.linkerd.cluster.local"
	spiffe = "spiffe://cluster.local/ns/default/sa/web"
)

// Each failure of TLS has a reason and advice, which are the same for a connection and a
// probe.
func TestHandshake(t *testing.T) {
	ca, other, dir := trusttest.New(t), trusttest.New(t), t.TempDir()
	mine, stranger := filepath.Join(dir, "mine.pem"), filepath.Join(dir, "stranger.pem")
	trusttest.Write(t, mine, mine, ca.Issue(t, "me.default"))
	trusttest.Write(t, stranger, stranger, other.Issue(t, "me.default"))

	server := func(cert tls.Certificate, wants tls.ClientAuthType) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: wants, ClientCAs: ca.Pool, MinVersion: tls.VersionTLS12}
	}
	optional := serve(t, server(ca.Issue(t, web, spiffe, "127.0.0.1"), tls.VerifyClientCertIfGiven))
	required := serve(t, server(ca.Issue(t, web), tls.RequireAndVerifyClientCert))
	foreign := serve(t, server(other.Issue(t, web), tls.NoClientCert))
	expired := serve(t, server(ca.Expired(t, web), tls.NoClientCert))
	nameless := serve(t, server(ca.Issue(t), tls.NoClientCert))
	old := server(ca.Issue(t, web), tls.NoClientCert)
	old.MaxVersion = tls.VersionTLS12
	older := serve(t, old)
	plain := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // a close with unread input could discard the response
	})
	mute := listen(t, func(c net.Conn) { c.Close() })

	for _, tt := range []struct {
		name   string
		addr   string
		files  Files
		server Server
		who    string // the identity of the client, as the server reports it
		says   []string
	}{
		{"an identity", optional, Files{ca.File, mine, ""}, Server{Identity: web}, "me.default", nil},
		{"a URI", optional, Files{ca.File, mine, ""}, Server{Identity: spiffe}, "me.default", nil},
		{"a name in another case", optional, Files{ca.File, mine, ""}, Server{Identity: "WEB" + web[3:]}, "me.default", nil},
		{"a host", optional, Files{ca.File, mine, ""}, Server{Name: "127.0.0.1"}, "me.default", nil},
		{"without a certificate", optional, Files{Anchors: ca.File}, Server{Identity: web}, "nobody", nil},
		{"that must be shown", required, Files{ca.File, mine, ""}, Server{Identity: web}, "me.default", nil},

		{"another authority", foreign, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{
			"expected " + web, "signed by unknown authority", "--cacert",
		}},
		{"another authority of a host", foreign, Files{ca.File, mine, ""}, Server{Name: web}, "", []string{"signed by unknown authority", "--cacert"}},
		{"another name", optional, Files{ca.File, mine, ""}, Server{Identity: "db.default"}, "", []string{
			"expected db.default, seen " + web, "If this is the intended process: --server-identity " + web,
		}},
		{"another host", optional, Files{ca.File, mine, ""}, Server{Name: "10.0.0.1"}, "", []string{
			"expected 10.0.0.1, seen " + web, "--server-identity " + web,
		}},
		{"no name", nameless, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{"seen none", "has no name"}},
		{"no name of a host", nameless, Files{ca.File, mine, ""}, Server{Name: web}, "", []string{"seen none", "has no name"}},
		{"it expired", expired, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{"expired", "Renew the server's certificate"}},
		{"it expired, of a host", expired, Files{ca.File, mine, ""}, Server{Name: web}, "", []string{"expired", "Renew the server's certificate"}},
		{"ours is wanted", required, Files{Anchors: ca.File}, Server{Identity: web}, "", []string{"--cert FILE"}},
		{"ours is not trusted", optional, Files{ca.File, stranger, ""}, Server{Identity: web}, "", []string{"--cert", "a trusted issuer"}},
		{"in clear", plain, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{"does not answer with TLS", "http://"}},
		{"not at all", mute, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{"it ended the connection", "Is this the tap port"}},
		{"an older TLS", older, Files{ca.File, mine, ""}, Server{Identity: web}, "", []string{"version", "TLS 1.3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := New(tt.files, tt.server)
			require.NoError(t, err)
			who, err := ask(t, c, tt.addr)
			found := probe(t, c, tt.addr)
			if tt.says == nil {
				require.NoError(t, err)
				require.Equal(t, tt.who, who)
				require.NoError(t, found)
				return
			}
			require.Error(t, err)
			told, ok := FindError("error reading server preface: " + err.Error())
			require.True(t, ok, err)
			var e *Error
			require.ErrorAs(t, found, &e)
			for _, want := range tt.says {
				require.Contains(t, told, want)
				require.ErrorContains(t, e, want)
			}
			require.ErrorIs(t, err, errors.Unwrap(errors.Unwrap(err)), "the cause can be asked for")
		})
	}
}

// A new connection uses renewed certificates and trust anchors. An expired certificate is
// not sent.
func TestRotation(t *testing.T) {
	ca, next, dir := trusttest.New(t), trusttest.New(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	trusttest.Write(t, cert, key, ca.Issue(t, "first"))
	both := ca.Pool.Clone()
	both.AppendCertsFromPEM(read(t, next.File))
	addr := func(by *trusttest.CA) string {
		return serve(t, &tls.Config{
			Certificates: []tls.Certificate{by.Issue(t, web)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: both, MinVersion: tls.VersionTLS13,
		})
	}
	before, after := addr(ca), addr(next)
	c, err := New(Files{ca.File, cert, key}, Server{Identity: web})
	require.NoError(t, err)
	who, err := ask(t, c, before)
	require.NoError(t, err)
	require.Equal(t, "first", who)

	trusttest.Write(t, cert, key, next.Issue(t, "second"))
	who, err = ask(t, c, before)
	require.NoError(t, err)
	require.Equal(t, "second", who)

	_, err = ask(t, c, after)
	require.ErrorContains(t, err, "unknown authority")
	write(t, ca.File, read(t, next.File))
	who, err = ask(t, c, after)
	require.NoError(t, err)
	require.Equal(t, "second", who)

	trusttest.Write(t, cert, key, next.Expired(t, "third"))
	_, err = ask(t, c, after)
	require.ErrorContains(t, err, cert+": it expired at ")
	require.ErrorContains(t, err, "Renew the client certificate")
}

// The handshake with a silent server lasts until ctx ends.
func TestSilentServer(t *testing.T) {
	ca := trusttest.New(t)
	c, err := New(Files{Anchors: ca.File}, Server{Identity: web})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer raw.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = c.Probe(ctx, raw)
	require.ErrorContains(t, err, "it does not answer to TLS")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestSpeaks(t *testing.T) {
	ca := trusttest.New(t)
	speaks := func(addr string) bool {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		return Speaks(t.Context(), conn)
	}
	require.True(t, speaks(serve(t, &tls.Config{
		Certificates: []tls.Certificate{ca.Expired(t, web)}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13,
	})))
	require.False(t, speaks(listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "no") })))
}

func TestCredentialsOfAClient(t *testing.T) {
	c, err := New(Files{}, Server{Name: "web"})
	require.NoError(t, err)
	require.Same(t, c, c.Clone())
	require.Equal(t, "tls", c.Info().SecurityProtocol)
	require.Equal(t, "web", c.Expected())
	_, _, err = c.ServerHandshake(nil)
	require.Error(t, err)
	require.Error(t, c.OverrideServerName("db"))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
}
