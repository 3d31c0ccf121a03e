package ca

import (
	"context"
	"crypto"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer/tcplayer/identity"
)

const ownName = "identity.cluster.local"

func anyone(context.Context, string, []byte) error { return nil }

func request(t *testing.T) (csr []byte, public crypto.PublicKey) {
	t.Helper()
	key, csr, err := identity.Request(ownName)
	require.NoError(t, err)
	return csr, key.Public()
}

// Issue returns an error after the issuer has expired, because its certificates would be
// invalid.
func TestIssueAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New("cluster.local")
		require.NoError(t, err)
		csr, public := request(t)
		s := service{authority: a, check: anyone}
		certify := func() error {
			_, err := s.Certify(t.Context(), &pb.CertifyRequest{Identity: ownName, Token: []byte("t"), CertificateSigningRequest: csr})
			return err
		}
		time.Sleep(issuerLife - time.Hour)
		require.NoError(t, certify())
		time.Sleep(time.Hour)
		_, err = a.Issue(ownName, public)
		require.ErrorContains(t, err, "ca: the issuer expired at "+a.current.Load().chain[0].NotAfter.Format(time.RFC3339))
		err = certify()
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, "the issuer expired")
	})
}

// Serve logs whether the authority could issue its own certificate.
func TestServeLogsOwnCertificate(t *testing.T) {
	for want, expired := range map[string]bool{"certified the authority itself": false, "the issuer expired": true} {
		t.Run(want, func(t *testing.T) {
			a, err := New("cluster.local")
			require.NoError(t, err)
			if expired {
				a.current.Load().chain[0].NotAfter = time.Now()
			}
			logged := make(lines, 100)
			a.Log = slog.New(slog.NewTextHandler(logged, nil))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Serve(ctx, l, a, anyone, ownName) }()
			select {
			case line := <-logged:
				require.Contains(t, line, want)
			case <-time.After(time.Minute):
				require.Fail(t, "nothing is logged")
			}
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// An authority of short-lived certificates has one of its own at all times.
func TestServeRenewsOwnCertificate(t *testing.T) {
	for _, lifetime := range []time.Duration{4 * time.Second, 12 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			a, err := New("cluster.local")
			require.NoError(t, err)
			a.Lifetime = lifetime
			o, err := a.serverCert(ownName)
			require.NoError(t, err)
			seen := map[*tls.Certificate]bool{}
			for range 600 {
				time.Sleep(200 * time.Millisecond)
				cert, err := o.certificate(nil)
				require.NoError(t, err)
				require.True(t, cert.Leaf.NotAfter.After(time.Now()), "with a lifetime of %v", lifetime)
				seen[cert] = true
			}
			require.InDelta(t, 2*time.Minute/(lifetime/10*7), len(seen), 10, "with a lifetime of %v", lifetime)
		})
	}
}

// lines receives the lines of a log, while it has room.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}
