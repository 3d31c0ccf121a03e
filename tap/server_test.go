package tap

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/tap/match"
)

func all(limit uint32) *pb.ObserveRequest {
	return &pb.ObserveRequest{Limit: limit, Match: match.All()}
}

// Rejections and their codes.
func TestObserveRejects(t *testing.T) {
	p := listen(t, NewServer(NewRegistry(WithCapacity(1, 0))), nil)
	refusal := func(req *pb.ObserveRequest) *status.Status {
		stream, err := pb.NewTapClient(p.conn).Observe(t.Context(), req)
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Error(t, err)
		require.Error(t, <-p.ended)
		return status.Convert(err)
	}
	for name, tt := range map[string]struct {
		req  *pb.ObserveRequest
		want string
	}{
		"limit 0":       {&pb.ObserveRequest{Match: match.All()}, "tap: limit must be positive"},
		"no match":      {&pb.ObserveRequest{Limit: 1}, "tap: match: missing"},
		"empty match":   {&pb.ObserveRequest{Limit: 1, Match: &pb.ObserveRequest_Match{}}, "tap: match: missing"},
		"invalid match": {&pb.ObserveRequest{Limit: 1, Match: match.All(match.Not(match.DestinationLabel("", "x")))}, "tap: match.all[0].not.destination_label.key: empty"},
	} {
		t.Run(name, func(t *testing.T) {
			s := refusal(tt.req)
			require.Equal(t, codes.InvalidArgument, s.Code())
			require.Equal(t, tt.want, s.Message())
		})
	}
	t.Run("too many", func(t *testing.T) {
		p.observe(t.Context(), t, all(1))
		s := refusal(all(1))
		require.Equal(t, codes.ResourceExhausted, s.Code())
		require.Equal(t, "tap: too many watchers: 1 of 1", s.Message())
	})
}

// 100 watchers are accepted. The base of each is one more than the previous one.
func TestObserveCapacity(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("x"))
	streams := make([]grpc.ServerStreamingClient[pb.TapEvent], defaultMaxTaps)
	for i := range streams {
		streams[i] = p.observe(t.Context(), t, all(1))
	}
	stream, err := pb.NewTapClient(p.conn).Observe(t.Context(), all(1))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	send(t, svc, get("/"))
	for i, s := range streams {
		require.EqualValues(t, i, recv(t, s).ID.Base)
	}
}

// After the headers of the stream, no request is missed.
func TestObserveHeaders(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("x"))
	for range 20 {
		stream := p.observe(t.Context(), t, all(1))
		send(t, svc, get("/"))
		require.Equal(t, "q", kinds([]Event{recv(t, stream)}))
	}
}

// At the limit the stream ends with OK, after the requests in flight.
func TestObserveLimit(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("hello"))
	stream := p.observe(t.Context(), t, all(2))
	first, err := svc.Call(t.Context(), get("/0"))
	require.NoError(t, err)
	second, err := svc.Call(t.Context(), get("/1"))
	require.NoError(t, err)
	send(t, svc, get("/2"))
	got := []Event{recv(t, stream), recv(t, stream), recv(t, stream), recv(t, stream)}
	require.Equal(t, "qrqr", kinds(got))
	require.NoError(t, second.Body.Close())
	require.NoError(t, first.Body.Close())
	got = append(got, recv(t, stream), recv(t, stream))
	require.Equal(t, "qrqree", kinds(got))
	require.Equal(t, []uint64{0, 0, 1, 1, 1, 0}, []uint64{
		got[0].ID.Stream, got[1].ID.Stream, got[2].ID.Stream, got[3].ID.Stream, got[4].ID.Stream, got[5].ID.Stream,
	})
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"0"}, stream.Trailer()["gotower-tap-dropped"])
	require.NoError(t, <-p.ended)
	require.Nil(t, p.reg.active.Load())
}

// When a client disconnects, its watcher is removed. Open requests are not affected.
func TestObserveClientDisconnects(t *testing.T) {
	t.Parallel()
	leave := map[string]func(p *process, cancel func()){
		"cancel":     func(_ *process, cancel func()) { cancel() },
		"connection": func(p *process, _ func()) { _ = p.conn.Close() },
	}
	for name, leave := range leave {
		for _, state := range []string{"no event yet", "a request in flight", "at the limit, a request in flight", "not reading"} {
			t.Run(name+"/"+state, func(t *testing.T) {
				p := listen(t, NewServer(new(Registry)), nil)
				svc := stand(p.reg, respond("hello"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				limit := uint32(1 << 30)
				if state == "at the limit, a request in flight" {
					limit = 1
				}
				p.observe(ctx, t, all(limit))
				var rsp *reply
				switch state {
				case "no event yet":
				case "not reading":
					// More than the windows and buffers on the way hold: the
					// server's Send is blocked.
					flood(t, svc, p.reg)
				default:
					var err error
					rsp, err = svc.Call(t.Context(), get("/"))
					require.NoError(t, err)
				}
				leave(p, cancel)
				require.Error(t, <-p.ended)
				require.Nil(t, p.reg.active.Load())
				require.Empty(t, p.reg.Describe().Children)
				if rsp != nil {
					b, err := io.ReadAll(rsp.Body)
					require.NoError(t, err)
					require.Equal(t, "hello", string(b))
				}
			})
		}
	}
}

// flood sends requests until a watcher has dropped far more events than all buffers can
// hold.
func flood(t *testing.T, svc service, reg *Registry) {
	t.Helper()
	req := get("/" + string(make([]byte, 8<<10)))
	for reg.Describe().State.Get("dropped").(uint64) < 5000 {
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
	}
}

// memoryStream is a stream without a connection, for bubbles.
type memoryStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s memoryStream) Context() context.Context     { return s.ctx }
func (memoryStream) Send(*pb.TapEvent) error        { return nil }
func (memoryStream) SendHeader(_ metadata.MD) error { return nil }
func (memoryStream) SetTrailer(metadata.MD)         {}

// After the limit, requests cost nothing, even before the stream ends.
func TestObserveFullStreamIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(new(Registry), WithAllowRemote())
		svc := stand(srv.reg, respond("x"))
		ended := make(chan error)
		go func() { ended <- srv.Observe(all(1), memoryStream{ctx: t.Context()}) }()
		synctest.Wait()
		require.NotNil(t, srv.reg.active.Load())
		rsp, err := svc.Call(t.Context(), get("/"))
		require.NoError(t, err)
		synctest.Wait()
		require.Nil(t, srv.reg.active.Load())
		require.Len(t, srv.reg.Describe().Children, 1)
		require.NoError(t, rsp.Body.Close())
		require.NoError(t, <-ended)
	})
}

func TestShutdownEndsStreams(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	stream := p.observe(t.Context(), t, all(1))
	p.srv.Shutdown()
	p.srv.Shutdown()
	_, err := stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Error(t, <-p.ended)
	later, err := pb.NewTapClient(p.conn).Observe(t.Context(), all(1))
	require.NoError(t, err)
	_, err = later.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	p.grpc.GracefulStop()
	require.Nil(t, p.reg.active.Load())
}

func TestServerStopEndsStreams(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	stream := p.observe(t.Context(), t, all(1))
	p.grpc.Stop()
	_, err := stream.Recv()
	require.Error(t, err)
	require.Error(t, <-p.ended)
	require.Nil(t, p.reg.active.Load())
}

// One watcher that does not read, and one that reads.
func TestDropsReportedPerWatcher(t *testing.T) {
	t.Parallel()
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("hello"))
	const n = 400
	stuck := p.observe(t.Context(), t, all(n))
	reads := p.observe(t.Context(), t, all(n))
	long := get("/" + string(make([]byte, 16<<10))) // the server's buffer and the client's window are full after a hundred
	for range n {
		rsp, err := svc.Call(t.Context(), long)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		got := []Event{recv(t, reads), recv(t, reads), recv(t, reads)}
		require.Equal(t, "qre", kinds(got))
	}
	_, err := reads.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"0"}, reads.Trailer()["gotower-tap-dropped"])

	events := 0
	for {
		if _, err := stuck.Recv(); err != nil {
			require.ErrorIs(t, err, io.EOF, "the limit was reached: it ends well")
			break
		}
		events++
	}
	require.Less(t, events, 3*n)
	require.NotEqual(t, []string{"0"}, stuck.Trailer()["gotower-tap-dropped"])
}

func TestExtract(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("x"))
	headers := &pb.ObserveRequest_Extract{Extract: &pb.ObserveRequest_Extract_Http_{Http: &pb.ObserveRequest_Extract_Http{}}}
	for name, tt := range map[string]struct {
		extract *pb.ObserveRequest_Extract
		want    []Field
	}{
		"missing":    {nil, nil},
		"empty":      {&pb.ObserveRequest_Extract{}, nil},
		"other kind": {headers, nil},
		"headers":    {match.Headers(), []Field{{"cookie", "[redacted]"}}},
	} {
		t.Run(name, func(t *testing.T) {
			stream := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 1, Match: match.All(), Extract: tt.extract})
			req := get("/")
			req.header = fields{{"Cookie", "id=1"}}
			send(t, svc, req)
			require.Equal(t, tt.want, recv(t, stream).RequestInit.Headers)
		})
	}
}

func TestServerNilRegistry(t *testing.T) {
	p := listen(t, NewServer(nil), nil)
	p.observe(t.Context(), t, all(1))
}

func TestClientObserve(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, serve(func(context.Context, *call) (*reply, error) { return &reply{status: 200}, nil }))
	// ready counts the streams that the server has answered.
	ready := make(chan struct{}, 9)
	conn := &announcing{p.conn, ready}

	t.Run("ends with the stream", func(t *testing.T) {
		called := make(chan struct{})
		go func() {
			defer close(called)
			<-ready
			_, err := svc.Call(t.Context(), get("/a"))
			assert.NoError(t, err)
		}()
		var got []Event
		var trailer metadata.MD
		for e, err := range Observe(t.Context(), conn, all(1), grpc.Trailer(&trailer)) {
			require.NoError(t, err)
			got = append(got, e)
		}
		<-called
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, "/a", got[0].RequestInit.Path)
		require.Equal(t, []string{"0"}, trailer["gotower-tap-dropped"])
		require.NoError(t, <-p.ended)
	})
	t.Run("break releases the stream", func(t *testing.T) {
		called := make(chan struct{})
		go func() {
			defer close(called)
			<-ready
			_, err := svc.Call(t.Context(), get("/"))
			assert.NoError(t, err)
		}()
		for range Observe(t.Context(), conn, all(9)) {
			break
		}
		<-called
		require.Equal(t, codes.Canceled, status.Code(<-p.ended))
	})
	t.Run("a refusal is the only item", func(t *testing.T) {
		n := 0
		for _, err := range Observe(t.Context(), conn, all(0)) {
			n++
			require.EqualError(t, err, "tap: observe: rpc error: code = InvalidArgument desc = tap: limit must be positive")
			require.Equal(t, codes.InvalidArgument, status.Code(err))
		}
		require.Equal(t, 1, n)
		<-p.ended
	})
	t.Run("the end of ctx is the last item", func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		for len(ready) > 0 {
			<-ready
		}
		go func() {
			<-ready
			cancel(cause)
		}()
		var last error
		for _, err := range Observe(ctx, conn, all(9)) {
			last = err
		}
		require.ErrorIs(t, last, cause)
		<-p.ended
	})
	t.Run("again", func(t *testing.T) {
		seq := Observe(t.Context(), conn, all(0))
		for range 2 {
			for _, err := range seq {
				require.Equal(t, codes.InvalidArgument, status.Code(err))
			}
			require.Error(t, <-p.ended)
		}
	})
	t.Run("the server dies", func(t *testing.T) {
		for len(ready) > 0 {
			<-ready
		}
		go func() {
			<-ready
			p.grpc.Stop()
		}()
		var last error
		for _, err := range Observe(t.Context(), conn, all(9)) {
			last = err
		}
		require.Equal(t, codes.Unavailable, status.Code(last))
	})
}

// announcing signals that the server has sent the headers of a stream.
type announcing struct {
	grpc.ClientConnInterface
	ready chan<- struct{}
}

func (a *announcing) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := a.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return &announced{ClientStream: s, ready: a.ready}, err
}

type announced struct {
	grpc.ClientStream
	ready chan<- struct{}
	told  bool
}

func (a *announced) RecvMsg(m any) error {
	if !a.told {
		a.told = true
		_, _ = a.ClientStream.Header()
		a.ready <- struct{}{}
	}
	return a.ClientStream.RecvMsg(m)
}
