package tap

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The wire_*_test.go files test the rows of spec/tap.md with a client that uses only linkerd's
// protobuf messages. The name of each subtest is that of the row.

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
