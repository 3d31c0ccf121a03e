package reliability

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gotower/gotower/examples/destination/controller"
)

// Row 20: a proxy is replaced by another one at the same address again and again, under load from
// HTTP/1.1, HTTP/2 and gRPC streams. No request fails, although no client retries.
func TestDrainUnderLoad(t *testing.T) {
	whole(t)
	chat := "chat.test:80"
	pl := newPlane(t, newUpstream(t, nil).addr)
	pl.cfg.Destinations[chat] = served(chat, controller.H2, newChat(t)).Destinations[chat]
	require.NoError(t, pl.Set(pl.cfg))
	environ := []string{"GOTOWER_REUSE_PORT=true", "LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD=20s"}
	p := startProxy(t, pl.addr, environ...)
	addr := p.addr
	environ = append(environ, "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR="+addr)

	h1, h2, rpc := through(t, addr, false), through(t, addr, true), dialChat(t, addr, chat)
	fresh := through(t, addr, false)
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	clients := []*http.Client{h1, h2, fresh}
	rate := size(200, 450)
	got := offer(t, rate, func(ctx context.Context, i int) error { return get(ctx, clients[i%3], "http://web.test/") })
	chats := offer(t, rate/10, func(ctx context.Context, _ int) error { return converse(ctx, rpc, 10) })
	got.more(t, 50)

	restarts := size(2, 20)
	var longest time.Duration
	twoSteps := 0
	var old []*process
	for range restarts {
		witness := dialRaw(t, addr)
		require.NoError(t, witness.request(1, "GET", "/", true))
		require.Eventually(t, func() bool { return witness.answer(1) == "200" }, patience, time.Millisecond)
		next := startProxy(t, pl.addr, environ...)
		p.term(t)
		<-witness.over
		witness.close()
		if steps := witness.farewell(); len(steps) == 2 && steps[0].LastStreamID == 1<<31-1 && steps[1].LastStreamID == 1 {
			twoSteps++
		} else {
			t.Log("GOAWAY:", steps)
		}
		old = append(old, p)
		p = next
		got.more(t, rate*size(1, 4)/size(2, 1))
	}
	for _, o := range old {
		o.over(t)
		assert.Zero(t, o.exit, "%s", o.journal)
		longest = max(longest, o.took)
	}
	got.end()
	chats.end()
	t.Logf("%d restarts: requests: %v", restarts, got)
	t.Logf("conversations of gRPC, of 10 messages each way: %v", chats)
	t.Logf("GOAWAY in two steps: %d of %d; the longest exit took %v, all with code 0", twoSteps, restarts, longest.Round(time.Millisecond))
	assert.Empty(t, got.bad())
	assert.Empty(t, chats.bad())
	assert.Equal(t, restarts, twoSteps)
}

// Streams that are still open after the grace period end with a code that tells the reason.
func TestStreamsAfterGrace(t *testing.T) {
	whole(t)
	chat := "chat.test:80"
	pl := newPlane(t)
	pl.cfg.Destinations[chat] = served(chat, controller.H2, newChat(t)).Destinations[chat]
	require.NoError(t, pl.Set(pl.cfg))
	p := startProxy(t, pl.addr, "LINKERD2_PROXY_SHUTDOWN_GRACE_PERIOD=500ms")
	rpc := dialChat(t, p.addr, chat)
	stream, err := rpc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Chat/Chat")
	require.NoError(t, err)
	require.NoError(t, exchange(stream))
	p.term(t)
	err = stream.RecvMsg(new(wrapperspb.StringValue))
	p.over(t)
	t.Logf("a stream of gRPC that outlives the grace of 500 ms: %v; exit %d after %v", err, p.exit, p.took.Round(time.Millisecond))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.GreaterOrEqual(t, p.took, 500*time.Millisecond)
	assert.Zero(t, p.exit, "as linkerd's")
}

// newChat is a gRPC server that echoes each message.
func newChat(t testing.TB) (addr string) {
	t.Helper()
	srv := grpc.NewServer()
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Chat", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Chat", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			for {
				word := new(wrapperspb.StringValue)
				if err := s.RecvMsg(word); err != nil {
					return nil //nolint:nilerr // the client has sent all
				}
				if err := s.SendMsg(word); err != nil {
					return err
				}
			}
		}}},
	}, nil)
	l := listen(t)
	var done sync.WaitGroup
	done.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		srv.Stop()
		done.Wait()
	})
	return l.Addr().String()
}

func dialChat(t testing.TB, addr, authority string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithAuthority(authority),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// converse sends n messages on one stream, each after the response to the previous one.
func converse(ctx context.Context, conn *grpc.ClientConn, n int) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Chat/Chat")
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range n {
		if err := exchange(stream); err != nil {
			return err
		}
		<-tick.C
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err = stream.RecvMsg(new(wrapperspb.StringValue)); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func exchange(stream grpc.ClientStream) error {
	if err := stream.SendMsg(wrapperspb.String("word")); err != nil {
		return err
	}
	return stream.RecvMsg(new(wrapperspb.StringValue))
}
