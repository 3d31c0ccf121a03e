package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// rawCodec has byte slices as messages.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "raw" }
func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(d []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(d)
	return nil
}

// grpcServer is a server of grpc-go with methods of all shapes.
type grpcServer struct {
	addr     string
	hanging  chan struct{} // receives when a call of /t/Hang has begun
	canceled chan struct{} // receives when such a call was canceled
}

func newGRPCServer(t testing.TB) *grpcServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &grpcServer{l.Addr().String(), make(chan struct{}, 1), make(chan struct{}, 1)}
	gs := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(s.handle),
		grpc.MaxConcurrentStreams(100), grpc.MaxRecvMsgSize(64<<20))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = gs.Serve(l)
	}()
	t.Cleanup(func() {
		gs.Stop()
		<-done
	})
	return s
}

func (s *grpcServer) handle(_ any, st grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(st)
	md, _ := metadata.FromIncomingContext(st.Context())
	_ = st.SetHeader(metadata.Pairs("x-head", "h", "x-multi", "1", "x-multi", "2"))
	st.SetTrailer(metadata.Pairs("x-trail", "t", "x-seen-bin", string([]byte{1, 2, 0, 255})))
	var b []byte
	switch method {
	case "/t/Unary":
		if err := st.RecvMsg(&b); err != nil {
			return err
		}
		if v := md.Get("x-req"); len(v) != 2 {
			return status.Errorf(codes.Internal, "metadata %v", md)
		}
		return st.SendMsg(&b)
	case "/t/Fail":
		return status.Error(codes.NotFound, "no such thing: ä ")
	case "/t/Server":
		_ = st.RecvMsg(&b)
		for i := range 100 {
			x := bytes.Repeat([]byte{byte(i)}, 1000)
			if err := st.SendMsg(&x); err != nil {
				return err
			}
		}
		return nil
	case "/t/Client":
		n := 0
		for {
			err := st.RecvMsg(&b)
			if errors.Is(err, io.EOF) {
				x := fmt.Append(nil, n)
				return st.SendMsg(&x)
			}
			if err != nil {
				return err
			}
			n += len(b)
		}
	case "/t/Bidi":
		for {
			err := st.RecvMsg(&b)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = st.SendMsg(&b)
			}
			if err != nil {
				return err
			}
		}
	case "/t/Hang":
		signal(s.hanging)
		<-st.Context().Done()
		signal(s.canceled)
		return st.Context().Err()
	}
	return status.Error(codes.Unimplemented, method)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func grpcClient(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func grpcContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "x-req", "a", "x-req", "b", "x-bin-bin", string([]byte{0, 1, 200}))
}

var bidi = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func TestGRPCThroughProxy(t *testing.T) {
	for name, tt := range map[string]struct {
		server message.ServerConfig
		client ClientConfig
	}{
		"default":       {},
		"small windows": {message.ServerConfig{StreamWindow: 1, ConnWindow: 1}, ClientConfig{StreamWindow: 1, ConnWindow: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newGRPCServer(t)
			testGRPC(t, s, proxy(t, s.addr, tt.server, tt.client).addr)
		})
	}
}

func testGRPC(t *testing.T, s *grpcServer, addr string) {
	cc := grpcClient(t, addr)
	ctx := grpcContext(t)
	var b, out []byte
	t.Run("unary", func(t *testing.T) {
		for _, n := range []int{10, 10, 10, 0, 1000, 1 << 20, 3 << 20} {
			b := bytes.Repeat([]byte("u"), n)
			var h, tr metadata.MD
			require.NoError(t, cc.Invoke(ctx, "/t/Unary", &b, &out, grpc.Header(&h), grpc.Trailer(&tr)))
			require.True(t, bytes.Equal(b, out))
			assert.Equal(t, []string{"h"}, h.Get("x-head"))
			assert.Equal(t, []string{"1", "2"}, h.Get("x-multi"))
			assert.Equal(t, []string{"t"}, tr.Get("x-trail"))
			assert.Equal(t, []string{"\x01\x02\x00\xff"}, tr.Get("x-seen-bin"))
		}
	})
	t.Run("trailers only", func(t *testing.T) {
		err := cc.Invoke(ctx, "/t/Fail", &b, &out)
		assert.Equal(t, codes.NotFound, status.Code(err))
		assert.Equal(t, "no such thing: ä ", status.Convert(err).Message())
	})
	t.Run("server stream", func(t *testing.T) {
		st, err := cc.NewStream(ctx, bidi, "/t/Server")
		require.NoError(t, err)
		require.NoError(t, st.SendMsg(&b))
		require.NoError(t, st.CloseSend())
		for i := range 100 {
			require.NoError(t, st.RecvMsg(&out))
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, 1000), out)
		}
		require.ErrorIs(t, st.RecvMsg(&out), io.EOF)
	})
	t.Run("client stream", func(t *testing.T) {
		st, err := cc.NewStream(ctx, bidi, "/t/Client")
		require.NoError(t, err)
		x := make([]byte, 50000)
		for range 40 {
			require.NoError(t, st.SendMsg(&x))
		}
		require.NoError(t, st.CloseSend())
		require.NoError(t, st.RecvMsg(&out))
		assert.Equal(t, "2000000", string(out))
	})
	t.Run("bidirectional", func(t *testing.T) {
		st, err := cc.NewStream(ctx, bidi, "/t/Bidi")
		require.NoError(t, err)
		for i := range 200 {
			x := bytes.Repeat([]byte{byte(i)}, i*17)
			require.NoError(t, st.SendMsg(&x))
			require.NoError(t, st.RecvMsg(&out))
			require.True(t, bytes.Equal(out, x))
		}
		require.NoError(t, st.CloseSend())
		require.ErrorIs(t, st.RecvMsg(&out), io.EOF)
	})
	t.Run("deadline", func(t *testing.T) {
		for limit := 100 * time.Millisecond; ; limit *= 2 { // a call may need longer to arrive
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			err := cc.Invoke(ctx, "/t/Hang", &b, &out)
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
			select {
			case <-s.canceled:
				<-s.hanging
				return
			case <-time.After(limit):
			}
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			<-s.hanging
			cancel()
		}()
		err := cc.Invoke(ctx, "/t/Hang", &b, &out)
		assert.Equal(t, codes.Canceled, status.Code(err))
		<-s.canceled
	})
	t.Run("client gone", func(t *testing.T) {
		other := grpcClient(t, addr)
		go func() {
			<-s.hanging
			_ = other.Close()
		}()
		require.Error(t, other.Invoke(ctx, "/t/Hang", &b, &out))
		<-s.canceled
	})
}

// TestGRPCStress mixes calls, cancellations and clients.
func TestGRPCStress(t *testing.T) {
	t.Parallel()
	s := newGRPCServer(t)
	addr := proxy(t, s.addr, message.ServerConfig{MaxStreamResets: 500}, ClientConfig{}).addr
	until := time.Now().Add(time.Second)
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		cc := grpcClient(t, addr)
		for range 8 {
			wg.Go(func() {
				for time.Now().Before(until) || calls.Load() <= 100 {
					b := bytes.Repeat([]byte{byte(rand.Int())}, rand.IntN(1<<uint(rand.IntN(18))))
					var out []byte
					if rand.IntN(10) == 0 {
						ctx, cancel := context.WithTimeout(grpcContext(t), time.Duration(rand.IntN(3000))*time.Microsecond)
						_ = cc.Invoke(ctx, []string{"/t/Unary", "/t/Hang"}[rand.IntN(2)], &b, &out)
						cancel()
						continue
					}
					if err := cc.Invoke(grpcContext(t), "/t/Unary", &b, &out); !assert.NoError(t, err) {
						return
					}
					if !assert.True(t, bytes.Equal(b, out)) {
						return
					}
					calls.Add(1)
				}
			})
		}
	}
	wg.Wait()
	assert.NotZero(t, calls.Load())
}

// TestGRPCDrain has a stream that outlives the begin of the drain.
func TestGRPCDrain(t *testing.T) {
	s := newGRPCServer(t)
	front := proxy(t, s.addr, message.ServerConfig{}, ClientConfig{})
	cc := grpcClient(t, front.addr)
	st, err := cc.NewStream(grpcContext(t), bidi, "/t/Bidi")
	require.NoError(t, err)
	x, out := []byte("x"), []byte(nil)
	step := func() {
		require.NoError(t, st.SendMsg(&x))
		require.NoError(t, st.RecvMsg(&out))
	}
	step()
	for _, c := range front.open() {
		c.Drain()
	}
	for range 5 {
		time.Sleep(10 * time.Millisecond)
		step()
	}
	var b []byte
	require.NoError(t, cc.Invoke(grpcContext(t), "/t/Unary", &x, &b)) // on another connection
	require.NoError(t, st.CloseSend())
	require.ErrorIs(t, st.RecvMsg(&out), io.EOF)
	eventually(t, func() bool { return len(front.open()) == 1 }, "the drained connection ends")
}
