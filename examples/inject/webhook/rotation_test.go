package webhook

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	lifetime = 30 * 24 * time.Hour
	overlap  = 2 * time.Minute
)

var names = []string{"linkerd-proxy-injector.linkerd.svc", "127.0.0.1"}

// A new certificate is trusted for the overlap before it is used, and the old one after it.
// Each certificate that is used at a time is in the bundle before that time.
func TestRotation(t *testing.T) {
	now := time.Now()
	var s state
	trusted := now
	step := func(after time.Duration) bool {
		t.Helper()
		now = now.Add(after)
		next, err := s.step(names, now, trusted, lifetime, overlap)
		require.NoError(t, err)
		changed := string(next.bundle()) != string(s.bundle()) || string(next.current.cert) != string(s.current.cert)
		if string(next.bundle()) != string(s.bundle()) {
			trusted = now
		}
		s = next
		again, err := newState(s.data())
		require.NoError(t, err)
		require.Equal(t, s, again)
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM(s.bundle()))
		cert, err := s.current.parse()
		require.NoError(t, err)
		for _, name := range names {
			_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now})
			require.NoError(t, err)
		}
		return changed
	}
	require.True(t, step(0), "the first certificate")
	first := s.current
	require.False(t, step(lifetime/2))
	require.True(t, step(lifetime/4), "a new certificate before two thirds")
	next := s.next
	require.Equal(t, first, s.current)
	require.NotEqual(t, first, next)
	require.False(t, step(overlap-1))
	require.True(t, step(1))
	require.Equal(t, next, s.current)
	require.Equal(t, first.cert, s.previous)
	require.False(t, step(overlap-1))
	require.True(t, step(1))
	require.Nil(t, s.previous)
	require.Equal(t, next.cert, s.bundle())

	// All replicas were down until the certificate expired.
	require.True(t, step(2*lifetime))
	require.NotEqual(t, next, s.current)

	// The names changed.
	names = append(names, "other.linkerd.svc")
	t.Cleanup(func() { names = names[:2] })
	require.True(t, step(0))
	require.False(t, step(0))
}

func TestStateInvalid(t *testing.T) {
	p, err := newPair(names, time.Now(), lifetime)
	require.NoError(t, err)
	_, err = newState(map[string][]byte{nextCert: p.cert, nextKey: []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")})
	require.EqualError(t, err, "next.crt: the certificate or its key is invalid", "without parts of the key")
}
