package tap

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// The rows about the fields of events.
func TestWireEvents(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	inner := answering(fields{{"X-Rsp", "a\xff"}}, fields{{"grpc-status", "0"}, {"X-Sum", "1"}})
	svc := stand(p.reg, inner)
	stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll(), Extract: wireFields()})
	c := get("/api/vote")
	c.header = fields{{"X-B", "1"}, {"X-A", "2"}, {"X-B", "3"}, {"Authorization", "secret"}}
	ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "vote"}})
	rsp, err := svc.Call(ctx, c)
	require.NoError(t, err)
	_, _ = rsp.Body.Read(make([]byte, 1))
	all, _ := wireEnd(t, stream)
	require.Len(t, all, 3)
	t.Run("common", func(t *testing.T) {
		for _, e := range all {
			require.EqualValues(t, 10<<24|1, e.GetSource().GetIp().GetIpv4())
			require.EqualValues(t, 40000, e.GetSource().GetPort())
			require.EqualValues(t, 10<<24|1<<16|2<<8|3, e.GetDestination().GetIp().GetIpv4())
			require.EqualValues(t, 8080, e.GetDestination().GetPort())
			require.Equal(t, hostLabels, e.GetSourceMeta().GetLabels())
			require.Equal(t, podLabels, e.GetDestinationMeta().GetLabels())
			require.Equal(t, map[string]string{"route": "vote"}, e.GetRouteMeta().GetLabels())
			require.Equal(t, pb.TapEvent_OUTBOUND, e.GetProxyDirection())
		}
	})
	t.Run("request_init", func(t *testing.T) {
		init := all[0].GetHttp().GetRequestInit()
		require.Equal(t, http_types.HttpMethod_GET, init.GetMethod().GetRegistered())
		require.Equal(t, http_types.Scheme_HTTP, init.GetScheme().GetRegistered())
		require.Equal(t, "web:80", init.GetAuthority())
		require.Equal(t, "/api/vote", init.GetPath())
		require.Equal(t, [][2]string{{"authorization", "[redacted]"}, {"x-a", "2"}, {"x-b", "1"}, {"x-b", "3"}}, wireHeaders(init.GetHeaders()))
	})
	t.Run("response_init", func(t *testing.T) {
		init := all[1].GetHttp().GetResponseInit()
		require.Positive(t, init.GetSinceRequestInit().AsDuration())
		require.EqualValues(t, 200, init.GetHttpStatus())
		require.Equal(t, [][2]string{{"x-rsp", "a\xff"}}, wireHeaders(init.GetHeaders()), "value bytes as they are")
	})
	t.Run("response_end", func(t *testing.T) {
		end := all[2].GetHttp().GetResponseEnd()
		require.EqualValues(t, 0, end.GetEos().GetGrpcStatusCode())
		require.IsType(t, new(pb.Eos_GrpcStatusCode), end.GetEos().GetEnd())
		require.Equal(t, [][2]string{{"grpc-status", "0"}, {"x-sum", "1"}}, wireHeaders(end.GetTrailers()))
		require.Greater(t, end.GetSinceRequestInit().AsDuration(), end.GetSinceResponseInit().AsDuration())
	})
	t.Run("what a request does not say", func(t *testing.T) {
		stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
		send(t, Layer[*call, *reply](p.reg, newAccess())(respond("x")), &call{method: "BREW", path: "/"})
		e, err := stream.Recv()
		require.NoError(t, err)
		init := e.GetHttp().GetRequestInit()
		require.Equal(t, "BREW", init.GetMethod().GetUnregistered())
		require.Nil(t, init.GetScheme())
		require.Empty(t, init.GetAuthority())
		require.Nil(t, init.GetHeaders(), "extract only")
		require.Nil(t, e.GetRouteMeta(), "if a route matched")
		require.Nil(t, e.GetSource())
	})
}

// The labels on both sides.
func TestWireLabels(t *testing.T) {
	type labels = map[string]string
	p := listen(t, NewServer(new(Registry)), nil)
	for name, tt := range map[string]struct {
		opts        []Option
		source, dst labels
	}{
		"source_meta tls, inbound":       {[]Option{Inbound}, labels{"tls": "true", "client_id": "/web"}, labels{}},
		"source_meta tls, outbound":      {[]Option{Outbound, WithSourceLabels(labels{"tls": "loopback"})}, labels{"tls": "loopback"}, labels{}},
		"destination_meta tls, outbound": {[]Option{Outbound, WithDestination(serverAddr, labels{"tls": "true", "server_id": "x"})}, labels{}, labels{"tls": "true", "server_id": "x"}},
		"destination_meta tls, inbound":  {[]Option{Inbound, WithDestination(serverAddr, labels{"tls": "loopback"})}, labels{"tls": "true", "client_id": "/web"}, labels{"tls": "loopback"}},
		"destination_meta, outbound":     {[]Option{Outbound, WithDestination(serverAddr, podLabels)}, labels{}, podLabels},
	} {
		t.Run(name, func(t *testing.T) {
			stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
			send(t, Layer[*call, *reply](p.reg, labelledAccess{basicAccessor[*call, *reply]{newAccess()}}, tt.opts...)(respond("x")), get("/web"))
			all, _ := wireEnd(t, stream)
			require.Len(t, all, 3)
			for _, e := range all {
				require.Empty(t, cmpLabels(tt.source, e.GetSourceMeta().GetLabels()))
				require.Empty(t, cmpLabels(tt.dst, e.GetDestinationMeta().GetLabels()))
			}
		})
	}
}

// cmpLabels returns the differences; empty labels and no labels are equal.
func cmpLabels(want, got map[string]string) (diff []string) {
	for k, v := range want {
		if got[k] != v {
			diff = append(diff, "-"+k+"="+v)
		}
	}
	for k, v := range got {
		if want[k] != v {
			diff = append(diff, "+"+k+"="+v)
		}
	}
	return diff
}

func TestWireAuthentication(t *testing.T) {
	ca := newAuthority(t)
	mtls := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, dnsName("proxy"))},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: ca.pool, MinVersion: tls.VersionTLS13,
	})
	observes := func(t *testing.T, p *process, name string) codes.Code {
		t.Helper()
		conn := p.conn
		if name != "" {
			conn = dial(t, p.conn.Target()[len("passthrough:///"):], grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				RootCAs: ca.pool, Certificates: []tls.Certificate{ca.issue(t, dnsName(name))}, MinVersion: tls.VersionTLS13,
			})))
		}
		stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 1, Match: wireAll()})
		if err != nil {
			return status.Code(err)
		}
		if md, err := stream.Header(); err == nil && md != nil {
			send(t, stand(p.reg, respond("x")), get("/"))
		}
		_, err = stream.Recv()
		return status.Code(err)
	}
	const remote = "192.0.2.1:5000"
	t.Run("accepted client identity", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry), WithAllowedIdentities(tapIdentity)), afar(remote), grpc.Creds(mtls))
		require.Equal(t, codes.OK, observes(t, p, tapIdentity))
	})
	t.Run("other identity", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry), WithAllowedIdentities(tapIdentity)), afar(remote), grpc.Creds(mtls))
		require.Equal(t, codes.Unauthenticated, observes(t, p, "web"))
	})
	t.Run("plaintext from elsewhere", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), afar(remote))
		require.Equal(t, codes.Unauthenticated, observes(t, p, ""))
	})
	t.Run("loopback plaintext", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), nil)
		require.Equal(t, codes.OK, observes(t, p, ""))
	})
	t.Run("protocol", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), nil)
		conn, err := net.Dial("tcp", p.conn.Target()[len("passthrough:///"):])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		require.NoError(t, err)
		_, err = http.ReadResponse(bufio.NewReader(conn), nil)
		require.Error(t, err, "HTTP/2 only")
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it says so, or goes")
	})
}
