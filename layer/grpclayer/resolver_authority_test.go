package grpclayer

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
)

func TestAuthority(t *testing.T) {
	b, ok := NewResolver("ours", newSource()).(resolver.AuthorityOverrider)
	require.True(t, ok)
	for name, want := range map[string]string{
		"_grpc._tcp.web.test":    "web.test",
		"_grpc._tcp.web.test:80": "web.test:80",
		"web.test:80":            "web.test:80",
		"_web.test":              "_web.test",
		"_grpc._tcp":             "_grpc._tcp",
		"_grpc._tcp.":            "_grpc._tcp.",
		"_grpc.tcp.web.test":     "_grpc.tcp.web.test",
		"my_web:80":              "my_web:80",
		"my-web:80":              "my-web:80",
		"-_.~!$&'()*+,;=:[]@":    "-_.~!$&'()*+,;=:[]@",
		"azAZ09":                 "azAZ09",
		":80":                    "localhost:80",
		"[::1]:80":               "[::1]:80",
		"a/b c%é":                "a%2Fb%20c%25%C3%A9",
		"":                       "",
	} {
		assert.Equal(t, want, b.OverrideAuthority(resolver.Target{URL: url.URL{Scheme: "ours", Path: "/" + name}}), name)
	}
}

// The certificate is for the domain, because none is for the name of SRV
// records.
func TestResolverSRVCertificate(t *testing.T) {
	cert, roots := certificate(t, "web.test")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	authorities := make(chan []string, 1)
	s := &server{grpc: grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			authorities <- metadata.ValueFromIncomingContext(ctx, ":authority")
			return next(ctx, req)
		}))}
	pb.RegisterTestServiceServer(s.grpc, s)
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()

	cc, err := grpc.NewClient(name+":///_grpc._tcp.web.test", append(DialOptions(name, newSource(replace(l.Addr().String()))),
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, "")))...)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = pb.NewTestServiceClient(cc).UnaryCall(ctx, new(pb.SimpleRequest), grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, []string{"web.test"}, <-authorities)
	require.NoError(t, cc.Close())
	s.grpc.Stop()
	require.NoError(t, <-served)
}
