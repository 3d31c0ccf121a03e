package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/layertest"
)

// handshake connects both configs. It returns the states of client and server. The client has
// received its session.
func handshake(t testing.TB, client, server *tls.Config) (ours, theirs tls.ConnectionState, err error) {
	t.Helper()
	var n layertest.Network
	l, err := n.Listen("tcp", "10.0.0.1:443")
	require.NoError(t, err)
	defer l.Close()
	a, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:443")
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	c, s := tls.Client(a, client), tls.Server(b, server)
	done := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte("x"))
		done <- errors.Join(err, b.Close())
	}()
	_, err = c.Read(make([]byte, 1))
	err = errors.Join(err, a.Close(), <-done)
	return c.ConnectionState(), s.ConnectionState(), err
}

// resumes reports whether a connection of both configs is a resumed one. It must not fail.
func resumes(t testing.TB, client, server *tls.Config) bool {
	t.Helper()
	ours, theirs, err := handshake(t, client, server)
	require.NoError(t, err)
	require.Equal(t, ours.DidResume, theirs.DidResume)
	return ours.DidResume
}

// sharing returns to with the ticket keys or the session of from.
func sharing(to, from *tls.Config) *tls.Config {
	to.ClientSessionCache = from.ClientSessionCache
	for _, cfg := range []*tls.Config{to, from} {
		cfg.SetSessionTicketKeys([][32]byte{{1}})
	}
	return to
}

func TestResumption(t *testing.T) {
	for client, server := range map[string]string{web: other, spiffe: "spiffe://cluster.local/ns/default/sa/other"} {
		a := newAuthority(t)
		from, to := a.static(client).Client("other.default", server), a.static(server).Server()
		for n := range 3 {
			ours, theirs, err := handshake(t, from.Clone(), to)
			require.NoError(t, err)
			assert.Equal(t, n > 0, ours.DidResume)
			assert.Equal(t, n > 0, theirs.DidResume)
			name, ok := PeerIdentity(theirs)
			assert.True(t, ok)
			assert.Equal(t, client, name)
			assert.Equal(t, tls.X25519MLKEM768, ours.CurveID)
		}
	}
}

// A session is for one name, although the same server may be asked for another one.
func TestResumptionOfAnotherName(t *testing.T) {
	a := newAuthority(t)
	client, server := a.static(other), a.static(web).Server()
	proved := client.Client(web, web)
	require.False(t, resumes(t, proved, server))
	expected := sharing(client.Client(web, "db.default"), proved)
	_, _, err := handshake(t, expected, server)
	require.ErrorIs(t, err, ErrPeerIdentity)
	require.ErrorContains(t, err, "expected db.default, seen "+web)
	require.False(t, resumes(t, proved, server), "the failure ends the session")
	require.True(t, resumes(t, proved, server))
	require.False(t, resumes(t, client.Client(web, web), server), "each config has its own session")
}

// Other trust anchors on one side end the sessions, even with the same keys of the tickets.
func TestResumptionAfterOtherRoots(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	client, server := a.static(other), a.static(web)
	from, to := client.Client("", web), server.Server()
	require.False(t, resumes(t, from, to))

	rotated := a.static(web)
	rotated.roots = stranger.pool()
	_, _, err := handshake(t, from, sharing(rotated.Server(), to))
	require.ErrorContains(t, err, "certificate signed by unknown authority")
	issued := []*x509.Certificate{a.pair(other, time.Hour).Leaf, a.issuer}
	require.NoError(t, server.Server().VerifyConnection(tls.ConnectionState{DidResume: true, PeerCertificates: issued}))
	require.Error(t, rotated.Server().VerifyConnection(tls.ConnectionState{DidResume: true, PeerCertificates: issued}))

	require.False(t, resumes(t, from, to))
	again := client.current.Load()
	client = a.static(other)
	client.roots = stranger.pool()
	client.use(again)
	_, _, err = handshake(t, sharing(client.Client("", web), from), to)
	require.ErrorIs(t, err, ErrPeerIdentity)
	require.ErrorContains(t, err, "certificate signed by unknown authority")
}

// A session ends with the certificates of both sides.
func TestResumptionAfterExpiration(t *testing.T) {
	const short, long = time.Hour, 2 * time.Hour
	for name, tt := range map[string]struct {
		client, server, issuer time.Duration // life of the certificates
		renew                  bool          // both sides have new certificates
		want                   string        // error; "" means a full handshake
	}{
		"client":              {short, long, long, false, "the certificate expired at"},
		"server":              {long, short, long, false, "the certificate expired at"},
		"issuer":              {long, long, short, false, "the certificate expired at"},
		"client, renewed":     {client: short, server: long, issuer: long, renew: true},
		"server, renewed":     {client: long, server: short, issuer: long, renew: true},
		"client, new session": {client: long, server: long, issuer: long, renew: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAuthorityUntil(t, time.Now().Add(tt.issuer))
				client, err := Static(a.pair(other, tt.client), a.pool())
				require.NoError(t, err)
				server, err := Static(a.pair(web, tt.server), a.pool())
				require.NoError(t, err)
				from, to := client.Client("", web), server.Server()
				require.False(t, resumes(t, from, to))
				time.Sleep(short - time.Second)
				require.True(t, resumes(t, from, to))
				time.Sleep(2 * time.Second)
				if tt.renew {
					client.use(&certificate{a.pair(other, short), time.Now().Add(short)})
					server.use(&certificate{a.pair(web, short), time.Now().Add(short)})
					require.False(t, resumes(t, from, to))
					require.True(t, resumes(t, from, to))
					return
				}
				_, _, err = handshake(t, from, to)
				require.ErrorContains(t, err, tt.want)
			})
		})
	}
}

// A client of the CA resumes no session, because the session may have begun before its first
// certificate.
func TestBootstrapDoesNotResume(t *testing.T) {
	a := newAuthority(t)
	client, err := New(a.config(other))
	require.NoError(t, err)
	from, to := client.Bootstrap("", web), a.static(web).Server()
	for range 2 {
		require.False(t, resumes(t, from, to))
	}
	client.use(&certificate{a.pair(other, time.Hour), time.Now().Add(time.Hour)})
	for range 2 {
		require.False(t, resumes(t, from, to))
	}
}

// A ClientHello with a large ticket would not fit into what servers read to find the name.
func TestLargeTicketIsNotKept(t *testing.T) {
	a := newAuthority(t)
	client, server := a.static(other), a.static(web).Server()
	from := client.Client("", web)
	var sizes []int
	server.WrapSession = func(s tls.ConnectionState, state *tls.SessionState) ([]byte, error) {
		ticket, err := server.EncryptTicket(s, state)
		sizes = append(sizes, len(ticket))
		return ticket, err
	}
	require.False(t, resumes(t, from, server))
	require.Less(t, sizes[0], maxTicket)
	server.WrapSession = func(tls.ConnectionState, *tls.SessionState) ([]byte, error) {
		return bytes.Repeat([]byte("x"), maxTicket+1), nil
	}
	require.True(t, resumes(t, from, server), "by the first ticket")
	require.False(t, resumes(t, from, server))
	t.Logf("a usual ticket has %d bytes", sizes[0])
}
