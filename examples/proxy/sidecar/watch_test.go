package sidecar_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap/match"
)

// certified waits until a proxy has its certificate.
func certified(t *testing.T, tn *testProxy) *testProxy {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, http.StatusOK, adminStatus(c, tn, "/ready"))
	}, soon, time.Millisecond)
	return tn
}

// watch requests a tap and returns the status code.
func watch(t *testing.T, addr string, creds credentials.TransportCredentials, m *pb.ObserveRequest_Match) codes.Code {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 1, Match: m})
	if err != nil {
		return status.Code(err)
	}
	h, err := stream.Header()
	if err == nil && h != nil {
		return codes.OK
	}
	_, err = stream.Recv()
	return status.Code(err)
}

// With an identity, one name may watch the proxy from other machines. Certificates with other names
// or from another authority are rejected.
func TestTapAuthorization(t *testing.T) {
	m, other := newAuthority(t, anyClient), newAuthority(t, anyClient)
	b := certified(t, newTestProxy(t, newScript(t).addr, m.identified(t, serverName)))
	anonymous := m.of(t, tapName).Client(serverName, serverName, "h2")
	anonymous.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	stolen := m.of(t, tapName).Client(serverName, serverName, "h2")
	stolen.GetClientCertificate = other.of(t, tapName).Client("", tapName).GetClientCertificate
	all := match.All()
	require.Equal(t, codes.OK, watch(t, b.Tap, credentials.NewTLS(m.of(t, tapName).Client(serverName, serverName, "h2")), all))
	require.Equal(t, codes.Unauthenticated, watch(t, b.Tap, credentials.NewTLS(m.of(t, clientName).Client(serverName, serverName, "h2")), all))
	require.Equal(t, codes.Unauthenticated, watch(t, b.Tap, credentials.NewTLS(anonymous), all))
	require.Equal(t, codes.Unavailable, watch(t, b.Tap, credentials.NewTLS(stolen), all))
	require.Equal(t, codes.OK, watch(t, b.Tap, insecure.NewCredentials(), all), "of this machine")
}

// A tap request's size is limited before the client is authorized.
func TestTapRequestLimit(t *testing.T) {
	m := newAuthority(t, anyClient)
	b := certified(t, newTestProxy(t, newScript(t).addr, m.identified(t, serverName)))
	long := match.PathPrefix("/" + strings.Repeat("x", 1<<20))
	require.Equal(t, codes.ResourceExhausted,
		watch(t, b.Tap, credentials.NewTLS(m.of(t, clientName).Client(serverName, serverName, "h2")), long))
}
