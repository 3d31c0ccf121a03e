package tap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
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

// Two watchers share the rate of their server. Reports of drops count as events.
func TestEventRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(NewRegistry(WithCapacity(0, 20)), WithAllowRemote(), WithEventRate(1000))
		svc := stand(srv.reg, respond("x"))
		ctx, cancel := context.WithCancel(t.Context())
		var sent [2]int
		ended := make(chan error)
		for i := range sent {
			go func() {
				ended <- gotowerTap{server: srv}.Watch(&tappb.WatchRequest{}, watchStream{ctx: ctx, send: func(*tappb.WatchResponse) error {
					sent[i]++
					return nil
				}})
			}()
		}
		synctest.Wait()
		for range 3000 { // in three seconds
			for range 5 {
				send(t, svc, get("/"))
			}
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.InDelta(t, 3000, sent[0]+sent[1], 50)
		require.InDelta(t, 1500, sent[0], 200)
		cancel()
		require.Error(t, <-ended)
		require.Error(t, <-ended)
	})
}

func TestEventRateUnlimited(t *testing.T) {
	for _, n := range []int{0, -1} {
		require.Nil(t, NewServer(nil, WithEventRate(5), WithEventRate(n)).rate)
	}
}

// A server that shuts down does not wait for its rate.
func TestEventRateShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := NewServer(nil, WithAllowRemote(), WithEventRate(1))
		svc := stand(srv.reg, respond("x"))
		begun := time.Now()
		time.AfterFunc(time.Millisecond, func() {
			send(t, svc, get("/"))
			srv.Shutdown()
		})
		err := gotowerTap{server: srv}.Watch(&tappb.WatchRequest{}, watchStream{ctx: t.Context(), send: func(*tappb.WatchResponse) error { return nil }})
		require.Equal(t, errDown, err)
		require.Equal(t, time.Millisecond, time.Since(begun))
	})
}

// serveOn starts Serve, and returns its address.
func serveOn(t *testing.T, addr string, reg *Registry, opts ...ServerOption) (at string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	where, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, addr, reg, append(opts, WithOnListen(func(a net.Addr) { where <- a }))...)
		close(ended)
	}()
	stop = func() error {
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case a := <-where:
		return a.String(), stop
	case err := <-ended:
		require.NoError(t, err)
	}
	return "", stop
}

func TestServe(t *testing.T) {
	reg := new(Registry)
	for name, addr := range map[string]string{
		"127.0.0.1": "127.0.0.1:0", "localhost": "localhost:0", "a socket": "unix:" + filepath.Join(t.TempDir(), "tap"),
	} {
		t.Run(name, func(t *testing.T) {
			at, stop := serveOn(t, addr, reg)
			if name == "a socket" {
				at = addr
			} else {
				at = "passthrough:///" + at
			}
			conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			stream, err := pb.NewTapClient(conn).Observe(t.Context(), all(2))
			require.NoError(t, err)
			_, err = stream.Header()
			require.NoError(t, err)
			send(t, stand(reg, respond("x")), get("/"))
			require.NotNil(t, recv(t, stream).RequestInit)
			require.NoError(t, stop())
			_, err = wireEnd(t, stream)
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, "shutting down", "it is told, and not cut off when patience is over")
			require.Nil(t, reg.active.Load())
		})
	}
}

func TestServeRejects(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	creds := WithCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}))
	file, live := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "tap")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	other, err := net.Listen("unix", live)
	require.NoError(t, err)
	defer other.Close()
	for name, tt := range map[string]struct {
		addr string
		opts []ServerOption
		want string
	}{
		"every address": {":4190", nil, "tap: serve on :4190: other machines can reach this address: " +
			"listen on 127.0.0.1, or name the clients by WithCredentials and WithAllowedIdentities"},
		"any":                 {"0.0.0.0:0", nil, "other machines can reach this address"},
		"any of IPv6":         {"[::]:0", nil, "other machines can reach this address"},
		"another address":     {"192.0.2.1:4190", nil, "other machines can reach this address"},
		"a name":              {"example.com:4190", nil, "other machines can reach this address"},
		"names alone":         {"0.0.0.0:0", []ServerOption{WithAllowedIdentities("x")}, "WithAllowedIdentities needs WithCredentials"},
		"credentials alone":   {"0.0.0.0:0", []ServerOption{creds}, "WithCredentials needs WithAllowedIdentities"},
		"a socket, no path":   {"unix:", nil, "tap: serve on unix:: the path of the socket is missing: unix:/run/web/tap.sock"},
		"not an address":      {"4190", nil, "the address must be host:port, such as 127.0.0.1:4190"},
		"a file, no socket":   {"unix:" + file, nil, "address already in use"},
		"a socket, taken":     {"unix:" + live, nil, "address already in use"},
		"taken":               {taken.Addr().String(), nil, "address already in use"},
		"not on this machine": {"192.0.2.1:0", []ServerOption{WithAllowRemote()}, "cannot assign requested address"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, Serve(t.Context(), tt.addr, nil, tt.opts...), tt.want)
		})
	}
}

// Serve replaces the socket of a process that has crashed.
func TestServeStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tap")
	crashed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	crashed.SetUnlinkOnClose(false)
	require.NoError(t, crashed.Close())
	_, stop := serveOn(t, "unix:"+path, nil)
	require.NoError(t, stop())
}

func TestServeRemoteClients(t *testing.T) {
	ca := newAuthority(t)
	creds := WithCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, dnsName("proxy"))},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.pool, MinVersion: tls.VersionTLS13,
	}))
	at, _ := serveOn(t, "0.0.0.0:0", nil, creds, WithAllowedIdentities("ops"))
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	for name, want := range map[string]codes.Code{"ops": codes.OK, "web": codes.Unauthenticated} {
		conn := dial(t, net.JoinHostPort("127.0.0.1", port), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: ca.pool, Certificates: []tls.Certificate{ca.issue(t, dnsName(name))}, MinVersion: tls.VersionTLS13,
		})))
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := pb.NewTapClient(conn).Observe(ctx, all(1))
		require.NoError(t, err)
		if want == codes.OK {
			md, err := stream.Header()
			require.NoError(t, err)
			require.NotNil(t, md)
		} else {
			_, err = stream.Recv()
			require.Equal(t, want, status.Code(err))
		}
		cancel()
	}
}

func TestServeEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error)
	go func() { done <- Serve(ctx, "127.0.0.1:0", nil) }()
	select {
	case <-done: // its text depends on the operating system
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
}

// Serve ends although Describe waits for a lock.
func TestServeEndsDuringDescribe(t *testing.T) {
	t.Parallel()
	asked, goOn := make(chan struct{}), make(chan struct{})
	at, stop := serveOn(t, "127.0.0.1:0", nil, WithDescribe(func() layer.Node {
		close(asked)
		<-goOn
		return layer.Node{}
	}))
	conn := dial(t, at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	answer := make(chan error)
	go func() {
		_, err := tappb.NewTapClient(conn).Describe(t.Context(), &tappb.DescribeRequest{})
		answer <- err
	}()
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		close(goOn)
		t.Fatal("it does not end")
	}
	require.Equal(t, codes.Unavailable, status.Code(<-answer))
	close(goOn)
}

// A client of Watch that disconnects at any time leaves no watcher, no goroutine, and no
// cost for requests.
func TestWatcherDisconnects(t *testing.T) {
	leave := map[string]func(p *process, cancel func()){
		"cancel":     func(_ *process, cancel func()) { cancel() },
		"connection": func(p *process, _ func()) { _ = p.conn.Close() },
	}
	flooded := func(svc layer.Service[*bodied, *reply], reg *Registry) *reply {
		for reg.Describe().State.Get("dropped").(uint64) < 5000 {
			rsp, err := svc.Call(context.Background(), saying("long"))
			if err != nil {
				return nil
			}
			_ = rsp.Body.Close()
		}
		return nil
	}
	inFlight := func(svc layer.Service[*bodied, *reply], _ *Registry) *reply {
		rsp, _ := svc.Call(context.Background(), saying("a request with a body"))
		_, _ = io.ReadFull(rsp.Body, make([]byte, 2))
		return rsp
	}
	ended := func(svc layer.Service[*bodied, *reply], _ *Registry) *reply {
		rsp, _ := svc.Call(context.Background(), saying("a request with a body"))
		_ = rsp.Body.Close()
		return nil
	}
	states := map[string]struct {
		req  *tappb.WatchRequest
		then func(svc layer.Service[*bodied, *reply], reg *Registry) *reply
	}{
		"no event yet":                       {&tappb.WatchRequest{}, nil},
		"no event yet, for a time":           {&tappb.WatchRequest{Duration: durationpb.New(1 << 40)}, nil},
		"between requests":                   {&tappb.WatchRequest{}, ended},
		"a request in flight":                {&tappb.WatchRequest{Fields: true}, inFlight},
		"a request in flight, for a time":    {&tappb.WatchRequest{Duration: durationpb.New(1 << 40)}, inFlight},
		"bodies and explanation in flight":   {&tappb.WatchRequest{BodyBytes: 9, Explain: true}, inFlight},
		"a request kept back":                {&tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}, inFlight},
		"a request let go":                   {&tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}, ended},
		"bodies kept back":                   {&tappb.WatchRequest{BodyBytes: 9, Response: &tappb.ResponseMatch{Failures: true}}, inFlight},
		"at the limit, a request in flight":  {&tappb.WatchRequest{Limit: 1}, inFlight},
		"not reading":                        {&tappb.WatchRequest{}, flooded},
		"not reading, with all there is":     {&tappb.WatchRequest{Fields: true, Explain: true, BodyBytes: 100, Response: &tappb.ResponseMatch{}}, flooded},
		"not reading, and no request for it": {&tappb.WatchRequest{Sample: 1e-18}, ended},
	}
	for how, leave := range leave {
		for name, state := range states {
			t.Run(how+"/"+name, func(t *testing.T) {
				reg := NewRegistry(WithBodies(100, asItIs))
				p := listen(t, NewServer(reg), nil)
				a := newTee()
				svc := Explain(reg, newTee())(Layer[*bodied, *reply](reg, a)(layer.Func[*bodied, *reply](talkLong)))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p.watch(ctx, t, state.req)
				var rsp *reply
				if state.then != nil {
					rsp = state.then(svc, reg)
				}
				leave(p, cancel)
				require.Error(t, <-p.ended)
				require.Nil(t, reg.active.Load())
				require.Empty(t, reg.Describe().Children)
				requireNobodyLooks(t, svc, a)
				if rsp != nil {
					rest, err := io.ReadAll(rsp.Body)
					require.NoError(t, err)
					require.Len(t, rest, longAnswer-2, "the request goes on")
				}
				requireNoReader(t)
			})
		}
	}
}

const longAnswer = 20 << 10

func talkLong(_ context.Context, b *bodied) (*reply, error) {
	_, err := io.Copy(io.Discard, b.Body)
	return &reply{status: 200, Body: io.NopCloser(strings.NewReader(strings.Repeat("a", longAnswer)))}, err
}

// requireNobodyLooks is for when all have left: a request is handed on as it
// came.
func requireNobodyLooks(t *testing.T, svc layer.Service[*bodied, *reply], a withBodies) {
	t.Helper()
	looked := a.looks
	looks := looked.request() + looked.status.Load() + looked.response.Load()
	ctx := mute{context.Background(), t}
	rsp, err := svc.Call(ctx, saying("x"))
	require.NoError(t, err)
	require.NotEqual(t, "*tap.readAlong", fmt.Sprintf("%T", rsp.Body))
	require.Equal(t, looks, looked.request()+looked.status.Load()+looked.response.Load())
}

func requireNoReader(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	require.NotContains(t, string(stacks), "tap.(*reader)")
}

// Requests above the rate are not shown, are not dropped, and do not count
// toward the limit.
func TestMaxRPS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		terms, err := reg.terms(&tappb.WatchRequest{MaxRps: 2, Limit: 5})
		require.NoError(t, err)
		w, err := reg.watch(terms)
		require.NoError(t, err)
		defer reg.close(w)
		svc := stand(reg, respond(""))
		for range 4 {
			for range 10 {
				send(t, svc, get("/"))
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, uint64(5), w.seen.Load())
		require.Zero(t, w.dropped.Load())
	})
}

// A watcher that does not read costs no event. Each request counts as dropped.
func TestMaxRPSWatcherNotReading(t *testing.T) {
	reg := NewRegistry(WithCapacity(1, 3))
	w, err := reg.watch(terms{match: &condition{op: opAll}, limit: unlimited})
	require.NoError(t, err)
	defer reg.close(w)
	svc := stand(reg, respond(""))
	send(t, svc, get("/")) // three events
	require.True(t, w.bufferFull())
	clogged := Layer[*call, *reply](reg, newAccess())(respond(""))
	for range 10 {
		send(t, clogged, get("/"))
	}
	require.Equal(t, uint64(10), w.dropped.Load())
	require.Equal(t, uint64(11), w.seen.Load())
	require.Zero(t, w.inFlight.Load())
}
