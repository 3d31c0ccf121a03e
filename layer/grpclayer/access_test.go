package grpclayer

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/caller/callertest"
)

func TestAccessorAuthority(t *testing.T) {
	for target, want := range map[string]string{
		"10.0.0.1:80":               "10.0.0.1:80",
		"web.default:80":            "web.default:80",
		"dns:///web.default:80":     "web.default:80",
		"dns://1.1.1.1/web:80":      "web:80",
		"passthrough:///[::1]:5000": "[::1]:5000",
		"unix:///run/web.sock":      "localhost",
		"unix:run/web.sock":         "localhost",

		"ours:///web.test:80":               "web.test:80",
		"ours:///_grpc._tcp.web.test:80":    "web.test:80",
		"ours:///a%2Fb":                     "a%2Fb",
		"dns:///:80":                        "localhost:80",
		"passthrough:///_grpc._tcp.web:80":  "_grpc._tcp.web:80",
		"passthrough:///[fe80::1%25lo]:443": "[fe80::1%25lo]:443",
	} {
		cc, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithResolvers(NewResolver("ours", newSource())))
		require.NoError(t, err)
		for _, rpc := range []rpc{&clientUnary{cc: cc}, &clientStream{cc: cc}} {
			c := &Call{ctx: t.Context(), rpc: rpc}
			assert.Equal(t, want, GRPC{}.Authority(c), target)
			at, _ := netip.ParseAddrPort(strings.ReplaceAll(want, "%25", "%"))
			assert.Equal(t, at, GRPC{}.DestinationAddr(t.Context(), c), target)
		}
		require.NoError(t, cc.Close())
	}
}

func TestAccessorAddresses(t *testing.T) {
	from := func(p *peer.Peer) *Call { return &Call{incoming: true, ctx: peer.NewContext(t.Context(), p)} }
	mapped := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("[::ffff:10.0.0.1]:80"))
	c := from(&peer.Peer{Addr: mapped, LocalAddr: mapped})
	assert.Equal(t, "10.0.0.1:80", GRPC{}.DestinationAddr(t.Context(), c).String())
	assert.Equal(t, "10.0.0.1:80", GRPC{}.Source(c).String())
	for _, c := range []*Call{
		{}, {incoming: true, ctx: t.Context()}, from(&peer.Peer{}), from(&peer.Peer{LocalAddr: &net.UnixAddr{Name: "x"}}), {ctx: t.Context()},
	} {
		assert.False(t, GRPC{}.DestinationAddr(t.Context(), c).IsValid())
	}
}

func TestAccessorSourceLabels(t *testing.T) {
	at := func(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	secure := func(c *x509.Certificate) credentials.AuthInfo {
		var chains [][]*x509.Certificate
		if c != nil {
			chains = [][]*x509.Certificate{{c}}
		}
		return credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: chains}}
	}
	type labels = map[string]string
	for name, tt := range map[string]struct {
		peer *peer.Peer
		want labels
	}{
		"loopback": {&peer.Peer{Addr: at("127.0.0.1:1")}, labels{"tls": "loopback"}},
		"remote":   {&peer.Peer{Addr: at("10.0.0.1:1")}, labels{"tls": "no_tls_from_remote"}},
		"a socket": {&peer.Peer{Addr: &net.UnixAddr{Name: "x"}}, nil},
		"TLS":      {&peer.Peer{Addr: at("127.0.0.1:1"), AuthInfo: secure(nil)}, labels{"tls": "true"}},
		"nameless": {&peer.Peer{AuthInfo: secure(new(x509.Certificate))}, labels{"tls": "true"}},
		"name":     {&peer.Peer{AuthInfo: secure(callertest.Certificate(t, "web", "spiffe://x"))}, labels{"tls": "true", "client_id": "web"}},
		"URI":      {&peer.Peer{AuthInfo: secure(callertest.Certificate(t, "spiffe://x", "web"))}, labels{"tls": "true", "client_id": "spiffe://x"}},
	} {
		c := &Call{incoming: true, ctx: peer.NewContext(t.Context(), tt.peer)}
		assert.Equal(t, tt.want, GRPC{}.SourceLabels(c), name)
	}
	assert.Nil(t, GRPC{}.SourceLabels(&Call{ctx: t.Context()}), "a client")
	assert.Nil(t, GRPC{}.SourceLabels(&Call{incoming: true, ctx: t.Context()}), "the peer is unknown")
}

// The trailer has the status as in HTTP/2.
func TestAccessorTrailer(t *testing.T) {
	var a GRPC
	for _, tt := range []struct {
		reply *Reply
		want  map[string]string
	}{
		{&Reply{}, map[string]string{"grpc-status": "0"}},
		{&Reply{status: codes.NotFound, Trailer: metadata.Pairs("sum", "1")}, map[string]string{"grpc-status": "5", "sum": "1"}},
		{&Reply{Trailer: metadata.Pairs("grpc-status", "7")}, map[string]string{"grpc-status": "7"}},
	} {
		got := a.ResponseTrailer(tt.reply)
		assert.Equal(t, tt.want, maps.Collect(got.All()))
		assert.Equal(t, tt.want["grpc-status"], got.Get("Grpc-Status"))
		assert.Empty(t, got.Get("x"))
		for range got.All() {
			break
		}
	}
}

// The caller of gRPC gets the error of gRPC itself.
func TestAttemptErrorUnchanged(t *testing.T) {
	inner := status.Error(codes.NotFound, "no such thing")
	err := new(attempt).explain(inner, nil, metadata.Pairs("content-type", "application/grpc"))
	require.ErrorIs(t, err, inner)
	assert.Equal(t, inner, toStatus(t.Context(), err))
	rsp, ok := GRPC{}.ErrorResponse(t.Context(), new(Call), err)
	require.True(t, ok)
	assert.Equal(t, codes.NotFound, rsp.status)
	_, ok = GRPC{}.ErrorResponse(t.Context(), new(Call), inner)
	assert.False(t, ok, "the server did not respond")
}
