package layertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// serveHTTP starts a server of net/http and returns a client for it.
func serveHTTP(t *testing.T, n *Network, address string, protocols *http.Protocols, h http.Handler) *http.Client {
	t.Helper()
	l, err := n.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: h, Protocols: protocols, IdleTimeout: 90 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	transport := &http.Transport{DialContext: n.DialContext, Protocols: protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return &http.Client{Transport: transport}
}

func get(ctx context.Context, c *http.Client, url, body string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	rsp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer rsp.Body.Close()
	got, err := io.ReadAll(rsp.Body)
	return rsp, string(got), err
}

// TestHTTPInBubble runs the client and the server of net/http, over both of
// its protocols, through hours that pass in no time: slow handlers, idle
// connections that are closed by their timeout, deadlines of callers.
func TestHTTPInBubble(t *testing.T) {
	for _, name := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				protocols := new(http.Protocols)
				protocols.SetHTTP1(name == "HTTP/1.1")
				protocols.SetUnencryptedHTTP2(name == "HTTP/2.0")
				var n Network
				client := serveHTTP(t, &n, "10.0.0.1:80", protocols, http.HandlerFunc(echoSlowly))
				began := time.Now()
				peers := make(map[netip.AddrPort]bool)
				for hour := range 6 {
					rsp, got, err := get(t.Context(), client, "http://10.0.0.1/", fmt.Sprintf("hour %d", hour))
					require.NoError(t, err)
					require.Equal(t, name, rsp.Proto)
					require.Equal(t, fmt.Sprintf("hour %d", hour), got)
					require.Equal(t, "done", rsp.Trailer.Get("State"))
					peer, err := netip.ParseAddrPort(rsp.Header.Get("Peer"))
					require.NoError(t, err)
					require.True(t, peer.Addr().IsLoopback())
					peers[peer] = true
					time.Sleep(59 * time.Minute)
				}
				require.Equal(t, 6*time.Hour, time.Since(began))
				require.Len(t, peers, 6, "no connection outlives its idle timeout")
				stopsAtDeadline(t, client)
			})
		})
	}
}

// echoSlowly answers within a minute.
func echoSlowly(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Peer", r.RemoteAddr)
	w.Header().Set("Trailer", "State")
	w.Write(body[:1])
	w.(http.Flusher).Flush()
	select {
	case <-time.After(time.Minute):
		w.Write(body[1:])
		w.Header().Set("State", "done")
	case <-r.Context().Done():
	}
}

func stopsAtDeadline(t *testing.T, client *http.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	_, _, err := get(ctx, client, "http://10.0.0.1/", "too slow")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, time.Second, time.Since(began))
}

// A large body in each direction has to be held back by the window, more than
// once.
func TestHTTPLargeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		client := serveHTTP(t, &n, "10.0.0.1:80", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).EnableFullDuplex()
			io.Copy(w, r.Body)
		}))
		sent := strings.Repeat("0123456789abcdef", 20*window/16)
		_, got, err := get(t.Context(), client, "http://10.0.0.1/", sent)
		require.NoError(t, err)
		require.Equal(t, sent, got)
	})
}

// echo is a gRPC service without generated code: Say answers once, Chat both
// ways, Wait when the caller canceled.
func echo() *grpc.ServiceDesc {
	say := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		if in.GetValue() == "fail" {
			grpc.SetTrailer(ctx, metadata.Pairs("reason", "as asked"))
			return nil, status.Error(codes.Unknown, "as asked")
		}
		if in.GetValue() == "wait" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return in, nil
	}
	chat := func(_ any, stream grpc.ServerStream) error {
		for {
			in := new(wrapperspb.StringValue)
			if err := stream.RecvMsg(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			time.Sleep(10 * time.Minute)
			if err := stream.SendMsg(in); err != nil {
				return err
			}
		}
	}
	return &grpc.ServiceDesc{
		ServiceName: "test.Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: say}},
		Streams:     []grpc.StreamDesc{{StreamName: "Chat", Handler: chat, ServerStreams: true, ClientStreams: true}},
	}
}

func TestGRPCInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		l, err := n.Listen("tcp", "10.0.0.1:8080")
		require.NoError(t, err)
		server := grpc.NewServer()
		server.RegisterService(echo(), nil)
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		client, err := grpc.NewClient("passthrough:///10.0.0.1:8080",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return n.DialContext(ctx, "tcp", address)
			}))
		require.NoError(t, err)
		defer func() {
			require.NoError(t, client.Close())
			server.GracefulStop()
			require.NoError(t, <-served)
		}()

		var got wrapperspb.StringValue
		require.NoError(t, client.Invoke(t.Context(), "/test.Echo/Say", wrapperspb.String("hello"), &got))
		require.Equal(t, "hello", got.GetValue())

		var trailer metadata.MD
		err = client.Invoke(t.Context(), "/test.Echo/Say", wrapperspb.String("fail"), &got, grpc.Trailer(&trailer))
		require.Equal(t, codes.Unknown, status.Code(err))
		require.Equal(t, []string{"as asked"}, trailer.Get("reason"))

		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		err = client.Invoke(ctx, "/test.Echo/Say", wrapperspb.String("wait"), &got)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.Equal(t, 2*time.Hour, time.Since(began))

		began = time.Now()
		stream, err := client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Chat")
		require.NoError(t, err)
		for i := range 12 {
			require.NoError(t, stream.SendMsg(wrapperspb.String(fmt.Sprint(i))))
			require.NoError(t, stream.RecvMsg(&got))
			require.Equal(t, fmt.Sprint(i), got.GetValue())
		}
		require.NoError(t, stream.CloseSend())
		require.ErrorIs(t, stream.RecvMsg(&got), io.EOF)
		require.Equal(t, 2*time.Hour, time.Since(began))
	})
}
