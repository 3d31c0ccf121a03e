package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

// aborts are responses that are aborted after they started. Each function returns when its
// server has stopped.
var aborts = map[string]func(*testing.T, *Registry){
	"HTTP handler panics": func(t *testing.T, reg *Registry) {
		halfOf(t, httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound)), func() {
			panic(http.ErrAbortHandler)
		})
	},
	"HTTP layer fails": func(t *testing.T, reg *Registry) {
		tapped := Layer(reg, httplayer.Accessor{}, Inbound)
		halfOf(t, httplayer.Middleware(func(s httplayer.Service) httplayer.Service { return tapped(spoiling{s}) }), func() {})
	},
	"HTTP client leaves": func(t *testing.T, reg *Registry) {
		h := httplayer.Middleware(Layer(reg, httplayer.Accessor{}, Inbound))(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // as a reverse proxy does it
			}))
		server := httptest.NewServer(h)
		defer server.Close()
		rsp, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		_ = rsp.Body.Close()
	},
	"gRPC handler panics": func(t *testing.T, reg *Registry) {
		recovers := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer func() {
				if recover() != nil {
					err = status.Error(codes.Internal, "panic")
				}
			}()
			return next(srv, s)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainStreamInterceptor(recovers)},
			grpclayer.NewServer(Layer(reg, grpclayer.Accessor{}, Inbound)).ServerOptions()...)...)
		testpb.RegisterTestServiceServer(server, panicServer{})
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(l) })
		defer func() { server.Stop(); served.Wait() }()
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		s, err := testpb.NewTestServiceClient(conn).StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		require.Equal(t, codes.Internal, status.Code(drain(s.Recv)))
	},
}

// halfOf serves a handler behind wrap, which writes half of a response and then calls then.
// The client must get an error.
func halfOf(t *testing.T, wrap func(http.Handler) http.Handler, then func()) {
	t.Helper()
	server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		then()
	})))
	defer server.Close()
	rsp, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	_, err = io.ReadAll(rsp.Body)
	require.Error(t, err, "the client does not take it for whole")
	_ = rsp.Body.Close()
}

// spoiling calls the service, and then returns an error in place of its response.
type spoiling struct{ httplayer.Service }

func (f spoiling) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	if rsp, err := f.Service.Call(ctx, r); err == nil {
		_ = rsp.Body.Close()
	}
	return nil, &layer.Error{Layer: "spoiling", Reason: "after the handler", Err: errors.New("boom")}
}

type panicServer struct {
	testpb.UnimplementedTestServiceServer
}

func (panicServer) StreamingOutputCall(
	_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	_ = out.Send(new(testpb.StreamingOutputCallResponse))
	panic("after the first message")
}

// A response that is aborted after its start is a failure for all watchers. Top counts the
// same with and without other watchers.
func TestResponseAbortedAfterStart(t *testing.T) {
	for name, abort := range aborts {
		for _, watched := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", watched ", watched), func(t *testing.T) {
				reg := new(Registry)
				var all, failed *watcher
				if watched {
					all = watchOn(t, reg, &tappb.WatchRequest{})
					failed = watchOn(t, reg, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}})
				}
				c := countAll(t, reg, nil)
				abort(t, reg)
				r := only(t, c)
				require.EqualValues(t, 1, r.GetCount())
				require.Zero(t, r.GetSuccesses())
				if !watched {
					return
				}
				for _, w := range []*watcher{all, failed} {
					got := readAll(w)
					require.Equal(t, "qre", kinds(got))
					require.Equal(t, 200, got[1].ResponseInit.Status)
					end := got[2].ResponseEnd
					require.NotZero(t, end.Bytes)
					require.NotNil(t, end.SinceResponseInit)
					require.Nil(t, end.GRPCStatus)
					require.True(t, end.Failed(200))
					want := "INTERNAL_ERROR"
					if name == "HTTP client leaves" {
						want = "CANCEL"
					}
					require.Equal(t, want, end.Reset())
				}
			})
		}
	}
}
