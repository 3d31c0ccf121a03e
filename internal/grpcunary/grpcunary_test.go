package grpcunary_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/grpcunary"
)

// server answers by the name of the service, and records the timeout of the last call.
type server struct {
	grpc_health_v1.UnimplementedHealthServer

	timeout atomic.Int64
}

func (s *server) Check(ctx context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s.timeout.Store(0)
	if deadline, ok := ctx.Deadline(); ok {
		s.timeout.Store(int64(time.Until(deadline)))
	}
	if r.GetService() != "books" {
		return nil, status.Error(codes.NotFound, "no service "+r.GetService())
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// A server of grpc-go understands the call, and its answer or its status is understood.
func TestCall(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	health := new(server)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health)
	go func() { _ = s.Serve(listener) }()
	defer s.Stop()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	check := func(ctx context.Context, service string) (*grpc_health_v1.HealthCheckResponse, error) {
		question, err := proto.Marshal(&grpc_health_v1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		data, err := grpcunary.Call(ctx, transport, listener.Addr().String(), grpc_health_v1.Health_Check_FullMethodName, question)
		if err != nil {
			return nil, err
		}
		answer := new(grpc_health_v1.HealthCheckResponse)
		return answer, proto.Unmarshal(data, answer)
	}
	answer, err := check(t.Context(), "books")
	require.NoError(t, err)
	assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, answer.GetStatus())
	assert.Zero(t, health.timeout.Load())
	_, err = check(t.Context(), strings.Repeat("x", 300))
	require.EqualError(t, err, `HTTP status 200, grpc-status "5": no service `+strings.Repeat("x", 300))
	for limit, longest := range map[time.Duration]time.Duration{time.Minute: time.Minute, 1000 * time.Hour: 100_000 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err = check(ctx, "books")
		cancel()
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Duration(health.timeout.Load()), longest)
		assert.Positive(t, health.timeout.Load())
	}
}

// What is not the answer to a unary call is an error.
func TestCallWrongAnswers(t *testing.T) {
	for body, want := range map[string]string{
		"":                          "the answer is not one uncompressed message",
		"\x00\x00\x00\x00":          "the answer is not one uncompressed message",
		"\x01\x00\x00\x00\x00":      "the answer is not one uncompressed message",
		"\x00\x00\x00\x00\x01":      "the answer is not one uncompressed message",
		"\x00\x00\x00\x00\x00\x00":  "the answer is not one uncompressed message",
		"\x00\x00\x00\x00\x01\x00a": "the answer is not one uncompressed message",
		"fail":                      `HTTP status 502, grpc-status "": `,
	} {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if body == "fail" {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			w.Header().Set("Grpc-Status", "0")
			_, _ = w.Write([]byte(body))
		}), Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
		s.Protocols.SetUnencryptedHTTP2(true)
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() { _ = s.Serve(listener) }()
		transport := &http.Transport{Protocols: s.Protocols}
		_, err = grpcunary.Call(t.Context(), transport, listener.Addr().String(), "/a/B", nil)
		require.EqualError(t, err, want, "%q", body)
		transport.CloseIdleConnections()
		require.NoError(t, s.Close())
	}
}
