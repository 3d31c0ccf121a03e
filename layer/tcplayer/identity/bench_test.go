package identity

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkHandshake is a new connection of both sides over loopback, with one byte of the server:
// by this package, with a full handshake and with a resumed session, and by crypto/tls with the
// same certificates.
func BenchmarkHandshake(b *testing.B) {
	a := newAuthority(b)
	web, other := a.static(web), a.static(other)
	cert := func(i *Identity) []tls.Certificate { return []tls.Certificate{i.current.Load().Certificate} }
	for name, ends := range map[string]func() (server, client *tls.Config){
		"full": func() (server, client *tls.Config) {
			client = other.Client("", web.Name())
			client.ClientSessionCache = nil
			return web.Server(), client
		},
		"resumed": func() (server, client *tls.Config) { return web.Server(), other.Client("", web.Name()) },
		"crypto-tls": func() (server, client *tls.Config) {
			return &tls.Config{Certificates: cert(web), ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.pool(), SessionTicketsDisabled: true},
				&tls.Config{Certificates: cert(other), RootCAs: a.pool(), ServerName: web.Name()}
		},
	} {
		b.Run(name, func(b *testing.B) {
			server, client := ends()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
					tls.Server(conn, server).Write([]byte("x"))
					conn.Close()
				}
			}()
			connect := func() (resumed bool) {
				conn, err := tls.Dial("tcp", l.Addr().String(), client)
				require.NoError(b, err)
				_, err = conn.Read(make([]byte, 1)) // and the ticket
				require.NoError(b, err)
				defer conn.Close()
				return conn.ConnectionState().DidResume
			}
			require.False(b, connect())
			b.ReportAllocs()
			for b.Loop() {
				require.Equal(b, name == "resumed", connect())
			}
			l.Close()
			<-done
		})
	}
}
