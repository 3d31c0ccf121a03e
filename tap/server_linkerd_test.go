package tap

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// The tests in this file are the rows of spec/tap.md. Their client uses only linkerd's protobuf
// messages. The name of each subtest is that of the row.

type (
	wireMatch  = pb.ObserveRequest_Match
	wireStream = pb.Tap_ObserveClient
)

// wireAll matches everything, and wirePath one path.
func wireAll(of ...*wireMatch) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_All{All: &pb.ObserveRequest_Match_Seq{Matches: of}}}
}

func wireAny(of ...*wireMatch) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Any{Any: &pb.ObserveRequest_Match_Seq{Matches: of}}}
}

func wireNot(m *wireMatch) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Not{Not: m}}
}

func wireHTTP(m *pb.ObserveRequest_Match_Http) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Http_{Http: m}}
}

func wireText(exact, prefix string) *pb.ObserveRequest_Match_Http_StringMatch {
	if prefix != "" {
		return &pb.ObserveRequest_Match_Http_StringMatch{Match: &pb.ObserveRequest_Match_Http_StringMatch_Prefix{Prefix: prefix}}
	}
	return &pb.ObserveRequest_Match_Http_StringMatch{Match: &pb.ObserveRequest_Match_Http_StringMatch_Exact{Exact: exact}}
}

func wirePath(exact, prefix string) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Path{Path: wireText(exact, prefix)}})
}

// wireFields asks for header and trailer fields.
func wireFields() *pb.ObserveRequest_Extract {
	return &pb.ObserveRequest_Extract{Extract: &pb.ObserveRequest_Extract_Http_{Http: &pb.ObserveRequest_Extract_Http{
		Extract: &pb.ObserveRequest_Extract_Http_Headers_{Headers: &pb.ObserveRequest_Extract_Http_Headers{}},
	}}}
}

// wireEnd reads a stream to its end, and returns the events.
func wireEnd(t testing.TB, stream wireStream) (all []*pb.TapEvent, err error) {
	t.Helper()
	for {
		e, err := stream.Recv()
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
}

func wireNext(t testing.TB, stream wireStream) *pb.TapEvent_Http {
	t.Helper()
	e, err := stream.Recv()
	require.NoError(t, err)
	return e.GetHttp()
}

// wireID is that of any event.
func wireID(h *pb.TapEvent_Http) *pb.TapEvent_Http_StreamId {
	switch {
	case h.GetRequestInit() != nil:
		return h.GetRequestInit().GetId()
	case h.GetResponseInit() != nil:
		return h.GetResponseInit().GetId()
	}
	return h.GetResponseEnd().GetId()
}

// wireRefusal returns the code of a rejected request.
func wireRefusal(t testing.TB, p *process, req *pb.ObserveRequest) codes.Code {
	t.Helper()
	stream, err := pb.NewTapClient(p.conn).Observe(t.Context(), req)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Error(t, err)
	return status.Code(err)
}

func TestWireLifeCycle(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("hello"))
	observe := func(ctx context.Context, t *testing.T, limit uint32) wireStream {
		return p.observe(ctx, t, &pb.ObserveRequest{Limit: limit, Match: wireAll()})
	}
	t.Run("base id", func(t *testing.T) {
		for base := range uint32(3) {
			stream := observe(t.Context(), t, 1)
			send(t, svc, get("/"))
			require.Equal(t, base, wireID(wireNext(t, stream)).GetBase())
		}
	})
	t.Run("limit 0", func(t *testing.T) {
		require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Match: wireAll()}))
	})
	t.Run("match missing or invalid", func(t *testing.T) {
		for _, m := range []*wireMatch{nil, {}, wireNot(nil), wireHTTP(nil)} {
			require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: m}))
		}
	})
	t.Run("extract missing or other kind", func(t *testing.T) {
		for _, x := range []*pb.ObserveRequest_Extract{nil, {}, {Extract: &pb.ObserveRequest_Extract_Http_{}}} {
			stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll(), Extract: x})
			send(t, svc, get("/"))
			require.Nil(t, wireNext(t, stream).GetRequestInit().GetHeaders())
		}
	})
	t.Run("accepted", func(t *testing.T) {
		stream := observe(t.Context(), t, 1) // has its headers before there is an event
		send(t, svc, get("/"))
		require.NotNil(t, wireNext(t, stream).GetRequestInit())
	})
	t.Run("per matching request", func(t *testing.T) {
		stream := observe(t.Context(), t, 3)
		for range 5 {
			send(t, svc, get("/"))
		}
		all, err := wireEnd(t, stream)
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, all, 9, "three of each, and no more")
		for i, e := range all {
			require.EqualValues(t, i/3, wireID(e.GetHttp()).GetStream())
		}
	})
	t.Run("at limit", func(t *testing.T) {
		stream := observe(t.Context(), t, 1)
		rsp, err := svc.Call(t.Context(), get("/"))
		require.NoError(t, err)
		require.NotNil(t, wireNext(t, stream).GetRequestInit())
		require.NotNil(t, wireNext(t, stream).GetResponseInit())
		_, err = io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.EqualValues(t, 5, wireNext(t, stream).GetResponseEnd().GetResponseBytes())
		_, err = stream.Recv()
		require.ErrorIs(t, err, io.EOF, "after what was outstanding")
	})
	t.Run("client disconnect", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), nil) // one that has no other streams, which may still be ending
		ctx, cancel := context.WithCancel(t.Context())
		stream := p.observe(ctx, t, &pb.ObserveRequest{Limit: 9, Match: wireAll()})
		rsp, err := stand(p.reg, respond("hello")).Call(t.Context(), get("/"))
		require.NoError(t, err)
		wireNext(t, stream)
		cancel()
		require.Error(t, <-p.ended)
		require.Nil(t, p.reg.active.Load(), "everything is dropped")
		b, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(b), "and the request unaffected")
	})
	t.Run("process shutdown", func(t *testing.T) {
		stream := observe(t.Context(), t, 9)
		p.srv.Shutdown()
		_, err := stream.Recv()
		require.Equal(t, codes.Unavailable, status.Code(err))
	})
}

func TestWireMaxConcurrentTaps(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	for range 100 {
		p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
	}
	require.Equal(t, codes.ResourceExhausted, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: wireAll()}))
}

// The events of a response.
func TestWireE(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	t.Run("E3", func(t *testing.T) {
		stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
		send(t, Layer[*call, *reply](p.reg, newAccess(), Inbound)(respond("hello")), get("/"))
		all, err := wireEnd(t, stream)
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, all, 3)
		for _, e := range all {
			require.Equal(t, pb.TapEvent_INBOUND, e.GetProxyDirection())
		}
		require.Equal(t, "web:80", all[0].GetHttp().GetRequestInit().GetAuthority())
		require.Equal(t, "/", all[0].GetHttp().GetRequestInit().GetPath())
		require.EqualValues(t, 200, all[1].GetHttp().GetResponseInit().GetHttpStatus())
		require.EqualValues(t, 5, all[2].GetHttp().GetResponseEnd().GetResponseBytes())
	})
	t.Run("E4", func(t *testing.T) {
		stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
		send(t, stand(p.reg, answering(fields{{"grpc-status", "1"}}, nil)), get("/"))
		all, _ := wireEnd(t, stream)
		require.EqualValues(t, 1, all[2].GetHttp().GetResponseEnd().GetEos().GetGrpcStatusCode())
	})
}

// answering answers with these fields.
func answering(header, trailer fields) serve {
	return func(context.Context, *call) (*reply, error) {
		return &reply{status: 200, header: header, trailer: trailer, Body: io.NopCloser(&io.LimitedReader{})}, nil
	}
}

func TestWireSlowObservers(t *testing.T) {
	t.Run("request_init cannot be sent", func(t *testing.T) {
		p := listen(t, NewServer(NewRegistry(WithCapacity(1, 1))), nil)
		svc := stand(p.reg, respond("x"))
		const limit = 2000
		stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: limit, Match: wireAll()})
		long := get("/" + string(make([]byte, 8<<10)))
		for range limit {
			send(t, svc, long) // no reader, and no wait
		}
		all, err := wireEnd(t, stream)
		require.ErrorIs(t, err, io.EOF, "what is not shown counts toward the limit")
		begun := map[uint64]bool{}
		for _, e := range all {
			id := wireID(e.GetHttp()).GetStream()
			if e.GetHttp().GetRequestInit() != nil {
				begun[id] = true
			}
			assert.True(t, begun[id], "there is no partial stream: %d", id)
		}
		require.NotEmpty(t, begun)
		require.Less(t, len(begun), limit)
	})
	t.Run("later event cannot be sent", func(t *testing.T) {
		// The header of the response is larger than a buffer is, the rest is not.
		p := listen(t, NewServer(new(Registry)), nil)
		svc := stand(p.reg, answering(fields{{"large", string(make([]byte, 1<<20))}}, nil))
		stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll(), Extract: wireFields()})
		send(t, svc, get("/"))
		all, err := wireEnd(t, stream)
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, all, 2)
		require.NotNil(t, all[0].GetHttp().GetRequestInit())
		require.NotNil(t, all[1].GetHttp().GetResponseEnd(), "the rest is attempted")
		require.Equal(t, []string{"1"}, stream.Trailer()["gotower-tap-dropped"])
	})
	t.Run("receiver gone", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), nil)
		ctx, cancel := context.WithCancel(t.Context())
		p.observe(ctx, t, &pb.ObserveRequest{Limit: 9, Match: wireAll()})
		cancel()
		require.Error(t, <-p.ended)
		require.Nil(t, p.reg.active.Load(), "the tap is finished")
	})
	t.Run("data path", func(t *testing.T) {
		p := listen(t, NewServer(new(Registry)), nil)
		p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1 << 30, Match: wireAll()})
		flood(t, stand(p.reg, respond("x")), p.reg) // which would hang if it waited
	})
}

// The rows about how a response ends.
func TestWireEnds(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	breaks := errors.New("broken")
	for name, tt := range map[string]struct {
		inner   serve
		read    bool
		headers bool // a response_init comes
		eos     *pb.Eos
		bytes   uint64
	}{
		"normal":                         {respond("hello"), true, true, &pb.Eos{}, 5},
		"error before headers":           {failing(breaks), true, false, &pb.Eos{}, 0},
		"error before headers, h2 reset": {failing(resetError(3)), true, false, wireReset(3), 0},
		"error after headers":            {broken("hel", breaks), true, true, &pb.Eos{}, 3},
		"error after headers, h2 reset":  {broken("hel", resetError(11)), true, true, wireReset(11), 3},
		"body dropped early":             {respond("hello"), false, true, &pb.Eos{}, 0},
		"eos: trailers present":          {answering(fields{{"grpc-status", "1"}}, fields{{"grpc-status", "14"}}), true, true, wireStatus(14), 0},
		"eos: trailers do not parse":     {answering(nil, fields{{"grpc-status", "x"}}), true, true, &pb.Eos{}, 0},
		"eos: no trailers":               {answering(fields{{"grpc-status", "5"}}, nil), true, true, wireStatus(5), 0},
		"eos: neither":                   {answering(nil, nil), true, true, &pb.Eos{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: wireAll()})
			rsp, err := stand(p.reg, tt.inner).Call(t.Context(), get("/"))
			if err == nil {
				if tt.read {
					_, _ = io.ReadAll(rsp.Body)
				}
				_ = rsp.Body.Close()
			}
			all, err := wireEnd(t, stream)
			require.ErrorIs(t, err, io.EOF)
			require.Len(t, all, map[bool]int{false: 2, true: 3}[tt.headers])
			end := all[len(all)-1].GetHttp().GetResponseEnd()
			require.Equal(t, tt.eos.String(), end.GetEos().String())
			require.Equal(t, tt.bytes, end.GetResponseBytes())
			require.Positive(t, end.GetSinceRequestInit().AsDuration())
			require.Equal(t, tt.headers, end.GetSinceResponseInit() != nil)
			if tt.headers {
				head := all[1].GetHttp().GetResponseInit().GetSinceRequestInit().AsDuration()
				require.Equal(t, end.GetSinceRequestInit().AsDuration()-head, end.GetSinceResponseInit().AsDuration())
			}
		})
	}
}

func wireReset(code uint32) *pb.Eos {
	return &pb.Eos{End: &pb.Eos_ResetErrorCode{ResetErrorCode: code}}
}

func wireStatus(code uint32) *pb.Eos {
	return &pb.Eos{End: &pb.Eos_GrpcStatusCode{GrpcStatusCode: code}}
}

func failing(err error) serve {
	return func(context.Context, *call) (*reply, error) { return nil, err }
}

// broken is a body that ends with err.
func broken(text string, err error) serve {
	return func(context.Context, *call) (*reply, error) {
		r, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, text)
			_ = w.CloseWithError(err)
		}()
		return &reply{status: 200, Body: r}, nil
	}
}

// resetError is an error with the code of a reset.
type resetError uint32

func (resetError) Error() string       { return "reset" }
func (e resetError) ResetCode() uint32 { return uint32(e) }

// wireHeaders are fields as the wire has them.
func wireHeaders(h *http_types.Headers) (all [][2]string) {
	for _, one := range h.GetHeaders() {
		all = append(all, [2]string{one.GetName(), string(one.GetValue())})
	}
	return all
}

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
			send(t, Layer[*call, *reply](p.reg, labelledAccess{newAccess()}, tt.opts...)(respond("x")), get("/web"))
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

func wireIPv4(a, b, c, d uint32) *netpb.IPAddress {
	return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: a<<24 | b<<16 | c<<8 | d}}
}

func wireMask(ip *netpb.IPAddress, bits uint32) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Netmask_{
		Netmask: &pb.ObserveRequest_Match_Tcp_Netmask{Ip: ip, Mask: bits},
	}}
}

func wirePorts(lo, hi uint32) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Ports{
		Ports: &pb.ObserveRequest_Match_Tcp_PortRange{Min: lo, Max: hi},
	}}
}

func wireSource(m *pb.ObserveRequest_Match_Tcp) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Source{Source: m}}
}

func wireDestination(m *pb.ObserveRequest_Match_Tcp) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Destination{Destination: m}}
}

func wireDestinationLabel(key, value string) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_DestinationLabel{
		DestinationLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

func wireRouteLabel(key, value string) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_RouteLabel{
		RouteLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

func wireScheme(s *http_types.Scheme) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Scheme{Scheme: s}})
}

func wireMethod(m *http_types.HttpMethod) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Method{Method: m}})
}

func wireAuthority(exact, prefix string) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{Authority: wireText(exact, prefix)}})
}

// wireSees reports whether a watcher with m sees a request. It sends another request, which the
// watcher always sees, instead of waiting for the absence of an event.
func wireSees(ctx context.Context, t *testing.T, p *process, svc service, m *wireMatch, c *call) bool {
	t.Helper()
	const last = "/wire/last"
	stream := p.observe(ctx, t, &pb.ObserveRequest{Limit: 1, Match: wireAny(m, wirePath(last, ""))})
	rsp, err := svc.Call(ctx, c)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	send(t, svc, get(last))
	return wireNext(t, stream).GetRequestInit().GetPath() != last
}

// The rows, for both directions.
func TestWireMatch(t *testing.T) {
	yes, no := wireAll(), wireAny()
	registered := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}}
	https := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}}
	method := &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_GET}}
	other := &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: "get"}}
	for row, of := range map[string]struct{ holds, fails []*wireMatch }{
		"all":    {[]*wireMatch{wireAll(), wireAll(yes, yes), wireAll(yes, new(wireMatch))}, []*wireMatch{wireAll(yes, no)}},
		"any":    {[]*wireMatch{wireAny(no, yes)}, []*wireMatch{wireAny(), wireAny(no, no), wireAny(new(wireMatch))}},
		"not":    {[]*wireMatch{wireNot(no)}, []*wireMatch{wireNot(yes)}},
		"source": {[]*wireMatch{wireSource(wireMask(wireIPv4(10, 0, 0, 1), 32)), wireSource(wirePorts(40000, 0))}, []*wireMatch{wireSource(wirePorts(8080, 0))}},
		"destination": {
			[]*wireMatch{wireDestination(wireMask(wireIPv4(10, 1, 2, 3), 32)), wireDestination(wirePorts(8080, 0))},
			[]*wireMatch{wireDestination(wirePorts(40000, 0))},
		},
		"ports": {
			[]*wireMatch{wireDestination(wirePorts(8080, 8080)), wireDestination(wirePorts(8000, 9000)), wireDestination(wirePorts(0, 8080))},
			[]*wireMatch{wireDestination(wirePorts(8079, 0)), wireDestination(wirePorts(8081, 9000)), wireDestination(wirePorts(0, 8079))},
		},
		"netmask": {
			[]*wireMatch{wireDestination(wireMask(wireIPv4(10, 255, 0, 0), 8)), wireDestination(wireMask(wireIPv4(10, 1, 2, 2), 31))},
			[]*wireMatch{
				wireDestination(wireMask(wireIPv4(10, 1, 2, 4), 31)),
				wireDestination(wireMask(&netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{}}}, 1)), // another family
			},
		},
		"destination_label": {
			[]*wireMatch{wireDestinationLabel("pod", "web-1")},
			[]*wireMatch{wireDestinationLabel("pod", "web"), wireDestinationLabel("Pod", "web-1"), wireDestinationLabel("node", "web-1")},
		},
		"route_label":    {[]*wireMatch{wireRouteLabel("route", "vote")}, []*wireMatch{wireRouteLabel("route", "x"), wireRouteLabel("pod", "web-1")}},
		"http.scheme":    {[]*wireMatch{wireScheme(registered)}, []*wireMatch{wireScheme(https)}},
		"http.method":    {[]*wireMatch{wireMethod(method)}, []*wireMatch{wireMethod(other)}},
		"http.authority": {[]*wireMatch{wireAuthority("web:80", ""), wireAuthority("", "we")}, []*wireMatch{wireAuthority("web", ""), wireAuthority("", "eb")}},
		"http.path": {
			[]*wireMatch{wirePath("/api/vote", ""), wirePath("", "/api/")},
			[]*wireMatch{wirePath("/api", ""), wirePath("/api/vote?x=1", ""), wirePath("", "api")},
		},
	} {
		for _, direction := range []Direction{Inbound, Outbound} {
			t.Run(row+"/"+direction.String(), func(t *testing.T) {
				p := listen(t, NewServer(new(Registry)), nil)
				svc := Layer[*call, *reply](p.reg, newAccess(), direction, WithDestination(serverAddr, podLabels))(respond("x"))
				ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "vote"}})
				for i, m := range of.holds {
					require.True(t, wireSees(ctx, t, p, svc, m, get("/api/vote")), "holds %d: %v", i, m)
				}
				for i, m := range of.fails {
					require.False(t, wireSees(ctx, t, p, svc, m, get("/api/vote")), "fails %d: %v", i, m)
				}
			})
		}
	}
}

// Unknown conditions do not match.
func TestWireMatchUnknown(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := Layer[*call, *reply](p.reg, newAccess())(respond("x"))
	bare := func() *call { return &call{method: "GET", path: "/"} }
	all := wirePorts(0, 65535)
	for name, m := range map[string]*wireMatch{
		"source": wireSource(all), "destination": wireDestination(all),
		"route_label": wireRouteLabel("route", "x"), "destination_label": wireDestinationLabel("pod", "x"),
	} {
		require.False(t, wireSees(t.Context(), t, p, svc, m, bare()), name)
	}
	http := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}}
	require.True(t, wireSees(t.Context(), t, p, svc, wireScheme(http), bare()), "http.scheme: the default is http")
	four := &call{method: "GET", path: "/", source: netip.MustParseAddrPort("[::ffff:10.0.0.1]:1")}
	require.True(t, wireSees(t.Context(), t, p, svc, wireSource(wireMask(wireIPv4(10, 0, 0, 1), 32)), four))
}

func TestWireInvalidMatch(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	ip := wireIPv4(10, 0, 0, 1)
	v6 := &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{First: 1}}}
	for row, of := range map[string][]*wireMatch{
		"not":               {wireNot(nil), wireNot(&wireMatch{})},
		"source":            {wireSource(nil), wireSource(&pb.ObserveRequest_Match_Tcp{})},
		"destination":       {wireDestination(nil)},
		"ports":             {wireSource(wirePorts(0, 0)), wireSource(wirePorts(65536, 0)), wireSource(wirePorts(1, 65536)), wireSource(wirePorts(2, 1))},
		"netmask":           {wireSource(wireMask(ip, 0)), wireSource(wireMask(ip, 33)), wireSource(wireMask(v6, 129)), wireSource(wireMask(nil, 8))},
		"destination_label": {wireDestinationLabel("", "x"), wireDestinationLabel("x", "")},
		"route_label":       {wireRouteLabel("", "x"), wireRouteLabel("x", "")},
		"http.scheme":       {wireScheme(nil), wireScheme(&http_types.Scheme{})},
		"http.method":       {wireMethod(nil), wireMethod(&http_types.HttpMethod{})},
		"http.authority":    {wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{}})},
		"http.path":         {wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Path{}})},
	} {
		t.Run(row, func(t *testing.T) {
			for i, m := range of {
				require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: m}), i)
				require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: wireAll(m, wireNot(m))}), i)
			}
		})
	}
}

// Several taps on one request are independent.
func TestWireSeveralTaps(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("x"))
	first := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 2, Match: wireAll()})
	second := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 2, Match: wirePath("/b", "")})
	send(t, svc, get("/a"))
	send(t, svc, get("/b"))
	for range 3 {
		require.EqualValues(t, 0, wireID(wireNext(t, first)).GetStream())
	}
	id := wireID(wireNext(t, first))
	require.Equal(t, []uint64{0, 1}, []uint64{uint64(id.GetBase()), id.GetStream()})
	id = wireID(wireNext(t, second))
	require.Equal(t, []uint64{1, 0}, []uint64{uint64(id.GetBase()), id.GetStream()})
}
