package ca

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A client with too many failed requests is rejected before its token is checked.
func TestFailureLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New("cluster.local")
		require.NoError(t, err)
		csr, _ := request(t)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, TokenName(ownName)), []byte("right"), 0o600))
		s := &service{authority: a, check: TokenDir(dir)}
		certify := func(token string) codes.Code {
			_, err := s.Certify(t.Context(), &pb.CertifyRequest{Identity: ownName, Token: []byte(token), CertificateSigningRequest: csr})
			return status.Code(err)
		}
		for range 3 * failureBurst {
			require.Equal(t, codes.OK, certify("right"), "successes are not limited")
		}
		for range failureBurst {
			require.Equal(t, codes.FailedPrecondition, certify("wrong"))
		}
		require.Equal(t, codes.ResourceExhausted, certify("wrong"))
		require.Equal(t, codes.ResourceExhausted, certify("right"))
		require.False(t, s.failures.exceeded(netip.MustParseAddr("192.0.2.1")), "other addresses are not limited")
		time.Sleep(time.Second)
		for range failureRate {
			require.Equal(t, codes.FailedPrecondition, certify("wrong"))
		}
		require.Equal(t, codes.ResourceExhausted, certify("wrong"))
	})
}

// The memory for addresses is limited.
func TestFailureAddresses(t *testing.T) {
	var f failures
	addr := netip.MustParseAddr("10.0.0.1")
	for range 2*mostAddresses + 1 {
		f.add(addr)
		addr = addr.Next()
	}
	require.Len(t, f.limiters, 1)
}
