package sidecar_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// ways returns the addresses through which a client reaches an application: the outbound side, the
// inbound side, or both with mutual TLS between them.
func ways(t testing.TB, app string) map[string]string {
	t.Helper()
	out := &mesh{ctl: newScript(t)}
	out.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	out.answer(t, endpointAt(app))
	in := newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(app) })
	return map[string]string{
		"outbound": newTestProxy(t, out.ctl.addr, toService).Addr,
		"inbound":  in.Inbound,
		"mesh":     newMesh(t, app, speaksH2).a.Addr,
	}
}

// interopLogger panics where package interop would exit the process to report a failed case.
type interopLogger struct{ grpclog.LoggerV2 }

func (interopLogger) Fatalln(args ...any) { panic(fmt.Sprint(args...)) }

// setInteropLogger must run before all other code in grpc-go.
func setInteropLogger() {
	grpclog.SetLoggerV2(interopLogger{grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)})
}

// TestInterop runs grpc-go's interop client against its interop server.
func TestInterop(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(srv, interop.NewTestServer())
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	for way, addr := range ways(t, l.Addr().String()) {
		conn, err := grpc.NewClient("passthrough:///"+addr,
			grpc.WithAuthority("interop.example:8080"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Panics(t, func() { interopCases(conn)["empty_unary"](ended) }, "a failed case must be reported")
		for name, run := range interopCases(conn) {
			t.Run(way+"/"+name, func(t *testing.T) {
				defer func() {
					if r := recover(); r != nil {
						require.FailNow(t, "the case failed", "%.500v", r)
					}
				}()
				run(t.Context())
			})
		}
	}
}

// interopCases returns the cases by their names in the specification of the interop tests.
func interopCases(conn *grpc.ClientConn) map[string]func(ctx context.Context) {
	client := grpc_testing.NewTestServiceClient(conn)
	cases := map[string]func(ctx context.Context){
		"unimplemented_method": func(ctx context.Context) { interop.DoUnimplementedMethod(ctx, conn) },
		"unimplemented_service": func(ctx context.Context) {
			interop.DoUnimplementedService(ctx, grpc_testing.NewUnimplementedServiceClient(conn))
		},
	}
	for name, run := range map[string]func(context.Context, grpc_testing.TestServiceClient, ...grpc.CallOption){
		"empty_unary":                 interop.DoEmptyUnaryCall,
		"large_unary":                 interop.DoLargeUnaryCall,
		"client_streaming":            interop.DoClientStreaming,
		"server_streaming":            interop.DoServerStreaming,
		"ping_pong":                   interop.DoPingPong,
		"empty_stream":                interop.DoEmptyStream,
		"cancel_after_begin":          interop.DoCancelAfterBegin,
		"cancel_after_first_response": interop.DoCancelAfterFirstResponse,
		"timeout_on_sleeping_server":  interop.DoTimeoutOnSleepingServer,
		"custom_metadata":             interop.DoCustomMetadata,
		"status_code_and_message":     interop.DoStatusCodeAndMessage,
		"special_status_message":      interop.DoSpecialStatusMessage,
	} {
		cases[name] = func(ctx context.Context) { run(ctx, client) }
	}
	return cases
}
