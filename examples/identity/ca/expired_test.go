package ca

import (
	"context"
	"crypto"
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

const own = "identity.cluster.local"

func request(t *testing.T) (csr []byte, public crypto.PublicKey) {
	t.Helper()
	key, csr, err := identity.Request(own)
	require.NoError(t, err)
	return csr, key.Public()
}

// A certificate of an issuer that has expired would be one that nobody takes.
func TestIssueAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New("cluster.local")
		require.NoError(t, err)
		csr, public := request(t)
		s := service{authority: a, check: func(string, []byte) error { return nil }}
		certify := func() error {
			_, err := s.Certify(t.Context(), &pb.CertifyRequest{Identity: own, Token: []byte("t"), CertificateSigningRequest: csr})
			return err
		}
		time.Sleep(issuerLife - time.Hour)
		require.NoError(t, certify())
		time.Sleep(time.Hour)
		_, err = a.Issue(own, public)
		require.ErrorContains(t, err, "ca: the issuer expired at "+a.issuer.NotAfter.Format(time.RFC3339))
		err = certify()
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, "the issuer expired")
	})
}

// What the authority cannot do for itself is told, and so is that it can.
func TestServeLogsOwnCertificate(t *testing.T) {
	for says, expired := range map[string]bool{"identity certified": false, "the issuer expired": true} {
		t.Run(says, func(t *testing.T) {
			a, err := New("cluster.local")
			require.NoError(t, err)
			if expired {
				a.issuer.NotAfter = time.Now()
			}
			said := make(lines, 100)
			a.Log = slog.New(slog.NewTextHandler(said, nil))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Serve(ctx, l, a, func(string, []byte) error { return nil }, own) }()
			select {
			case line := <-said:
				require.Contains(t, line, says)
			case <-time.After(time.Minute):
				require.Fail(t, "it says nothing")
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
			i, err := a.identity(own)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- i.Run(ctx, local{service{authority: a, check: func(string, []byte) error { return nil }}})
			}()
			require.NoError(t, i.Ready(ctx))
			for range 600 {
				time.Sleep(200 * time.Millisecond)
				synctest.Wait()
				_, err := i.Server().GetCertificate(nil)
				require.NoError(t, err, "with a lifetime of %v", lifetime)
			}
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// lines are what a logger said, as long as there is room.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}
