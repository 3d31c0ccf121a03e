package policytest

import (
	"context"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
)

// DialOptions returns options for a policy controller's client. If it receives a policy that
// linkerd2-proxy would reject, the test fails.
func DialOptions(t *testing.T) []grpc.DialOption {
	t.Helper()
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, method, req, reply, conn, opts...)
			if err == nil {
				accept(t, reply)
			}
			return err
		}),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, conn, method, opts...)
			// The stream is only used if err is nil.
			return &checked{stream, t}, err
		}),
	}
}

// checked is a stream that passes each received message to accept.
type checked struct {
	grpc.ClientStream

	t *testing.T
}

// RecvMsg implements [grpc.ClientStream].
func (c *checked) RecvMsg(m any) error {
	err := c.ClientStream.RecvMsg(m)
	if err == nil {
		accept(c.t, m)
	}
	return err
}

// accept fails the test if m is a policy that linkerd2-proxy would reject.
func accept(t *testing.T, m any) {
	t.Helper()
	switch policy := m.(type) {
	case *outbound.OutboundPolicy:
		assert.NoError(t, Outbound(policy), "linkerd2-proxy rejects %v", policy)
	case *inbound.Server:
		assert.NoError(t, Inbound(policy), "linkerd2-proxy rejects %v", policy)
	}
}
