package sidecar_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

// The endpoint's proxy accepts connections at its own address, for the port in a transport header.
func TestI3DirectPortH2(t *testing.T) {
	up, got := application(t, okAnswer)
	m := meshOf(t, "")
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.answer(t, endpointAt(up, proves(serverName), speaksH2, direct(m.b.Inbound)))
	first, _, body := dialWire(t, m.a.Addr).ask(t, "GET /a HTTP/1.1\nHost: web\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)
	require.Equal(t, "ok", body)
	r := <-got
	assert.Equal(t, "GET /a HTTP/1.1", r.first)
	assert.ElementsMatch(t, proven([]string{"Host: web"}), r.fields)
}

// Bytes for a port that the profile marks as opaque, with a server that speaks first (A5), are sent
// to the direct port of the server's proxy.
func TestI3DirectPortOpaque(t *testing.T) {
	m := meshOf(t, "")
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example", OpaqueProtocol: true})
	up := shouting(t, "220 hello")
	m.answer(t, endpointAt(up, proves(serverName), isOpaque, direct(m.b.Inbound)))
	w := dialWire(t, m.a.Addr)
	w.hear(t, "220 hello")
	converse(t, w)
	counted(t, m.b, "tcp_close_total", 1, `client_id="`+clientName+`"`, `errno=""`, `peer="src"`, `target_addr="`+up+`"`)
	counted(t, m.b, "inbound_tcp_authz_allow_total", 1, `client_id="`+clientName+`"`, `srv_kind="default"`, `target_addr="`+up+`"`)
}

// A proxy accepts connections at its own address only from proxies with an identity.
func TestDirectPortRequiresIdentity(t *testing.T) {
	m := meshOf(t, "")
	w := dialWire(t, m.b.Inbound)
	say(w, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
	_, err := w.in.ReadByte()
	require.Error(t, err)
	control := h1Client(t, m.b.Admin)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, metrics := get(c, control, "http://"+m.b.Admin+"/metrics")
		assert.Contains(c, metrics, "inbound_tcp_errors_total{")
	}, soon, tick)
}

// All kinds of gRPC calls work over HTTP/2 and mutual TLS.
func TestGRPCMesh(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	e := &echo{left: make(chan struct{}, 1)}
	srv.RegisterService(e.desc(), e)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	m := newMesh(t, l.Addr().String(), speaksH2)
	conn, err := grpc.NewClient("passthrough:///"+m.a.Addr,
		grpc.WithAuthority("echo.example:8080"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })

	t.Run("unary", func(t *testing.T) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-say", "hi")
		var head, tail metadata.MD
		out := new(wrapperspb.StringValue)
		require.NoError(t, conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("hello"), out, grpc.Header(&head), grpc.Trailer(&tail)))
		require.Equal(t, "hello hi echo.example:8080", out.GetValue())
		require.Equal(t, []string{"h"}, head.Get("x-head"))
		require.Equal(t, []string{"t"}, tail.Get("x-tail"))
		err := conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("fail"), out)
		require.Equal(t, codes.Unknown, status.Code(err))
		require.Len(t, status.Convert(err).Details(), 1)
	})
	for name, shape := range map[string]struct {
		questions int
		turns     bool // each answer precedes the next question
	}{"server streaming": {1, false}, "client streaming": {3, false}, "both ways": {3, true}} {
		t.Run(name, func(t *testing.T) {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
			require.NoError(t, err)
			hear := func() { require.NoError(t, stream.RecvMsg(new(wrapperspb.StringValue))) }
			for range shape.questions {
				require.NoError(t, stream.SendMsg(wrapperspb.String("word")))
				if shape.turns {
					hear()
				}
			}
			require.NoError(t, stream.CloseSend())
			for range shape.questions {
				if !shape.turns {
					hear()
				}
			}
			require.Equal(t, io.EOF, stream.RecvMsg(new(wrapperspb.StringValue)))
			require.Equal(t, []string{"t"}, stream.Trailer().Get("x-tail"))
		})
	}
}

// watch watches a proxy as name until it has seen one request for path. Other requests may arrive,
// because another test's proxy may connect to a port that its controller has known.
func (m *mesh) watch(t testing.TB, proxy *testProxy, proxyName, name, path string) (pb.Tap_ObserveClient, error) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, http.StatusOK, operatorSays(c, proxy.Proxy, "/ready"))
	}, soon, tick)
	cfg := m.of(t, name).Client(proxyName, proxyName, "h2")
	conn, err := grpc.NewClient("passthrough:///"+proxy.Tap, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 1, Match: match.Path(path)})
	require.NoError(t, err)
	if head, err := stream.Header(); err == nil && head != nil { // the tap is in place
		return stream, nil
	}
	_, err = stream.Recv()
	return nil, err
}

// events returns a stream's events until its end.
func events(t testing.TB, stream pb.Tap_ObserveClient) []*pb.TapEvent {
	t.Helper()
	var all []*pb.TapEvent
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, e)
	}
}

// Both proxies show a request in tap, with the peer.
func TestE3TapOfBothSides(t *testing.T) {
	t.Parallel()
	up, _ := application(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	m := newMesh(t, up, speaksH2)
	out, err := m.watch(t, m.a, clientName, tapName, "/seen")
	require.NoError(t, err)
	in, err := m.watch(t, m.b, serverName, tapName, "/seen")
	require.NoError(t, err)
	first, _, _ := dialWire(t, m.a.Addr).ask(t, "GET /seen HTTP/1.1\nHost: web.example\n\n")
	require.Equal(t, "HTTP/1.1 200 OK", first)

	for direction, stream := range map[pb.TapEvent_ProxyDirection]pb.Tap_ObserveClient{pb.TapEvent_OUTBOUND: out, pb.TapEvent_INBOUND: in} {
		tapEvents := events(t, stream)
		require.Len(t, tapEvents, 3)
		require.Equal(t, "/seen", tapEvents[0].GetHttp().GetRequestInit().GetPath())
		require.Equal(t, "web.example", tapEvents[0].GetHttp().GetRequestInit().GetAuthority())
		require.EqualValues(t, 200, tapEvents[1].GetHttp().GetResponseInit().GetHttpStatus())
		require.EqualValues(t, 5, tapEvents[2].GetHttp().GetResponseEnd().GetResponseBytes())
		for _, e := range tapEvents {
			require.Equal(t, direction, e.GetProxyDirection())
			source, dst := e.GetSourceMeta().GetLabels(), e.GetDestinationMeta().GetLabels()
			if direction == pb.TapEvent_INBOUND {
				require.Equal(t, "true", source["tls"])
				require.Equal(t, clientName, source["client_id"])
				require.Equal(t, map[string]string{
					"tls": "loopback", "srv_group": "", "srv_kind": "default", "srv_name": "all-unauthenticated",
					"route_group": "", "route_kind": "default", "route_name": "default",
					"authz_group": "", "authz_kind": "default", "authz_name": "all-unauthenticated",
				}, dst)
				continue
			}
			require.Equal(t, "true", dst["tls"])
			require.Equal(t, serverName, dst["server_id"])
		}
	}
}

func TestE1TapConfigured(t *testing.T) {
	a := newAuthority(t, anyClient)
	ctl := newScript(t)
	withoutName := newTestProxy(t, ctl.addr, a.identified(t, serverName), func(c *sidecar.Config) { c.Settings.Tap.Name = "" })
	require.Empty(t, withoutName.Tap)
	require.NotEmpty(t, newTestProxy(t, ctl.addr, a.identified(t, serverName)).Tap)
}

func TestE2TapOtherIdentities(t *testing.T) {
	t.Parallel()
	m := meshOf(t, freeAddr(t))
	_, err := m.watch(t, m.b, serverName, clientName, "/")
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.ErrorContains(t, err, clientName)
}

// A gRPC response may consist of headers only.
func TestE4TapStatusInHeaders(t *testing.T) {
	srv := http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "1")
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	m := newMesh(t, l.Addr().String(), speaksH2)
	in, err := m.watch(t, m.b, serverName, tapName, "/test.Echo/Unary")
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///"+m.a.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	err = conn.Invoke(t.Context(), "/test.Echo/Unary", wrapperspb.String(""), new(wrapperspb.StringValue))
	require.Equal(t, codes.Canceled, status.Code(err))
	tapEvents := events(t, in)
	require.Len(t, tapEvents, 3)
	require.EqualValues(t, 1, tapEvents[2].GetHttp().GetResponseEnd().GetEos().GetGrpcStatusCode())
}
