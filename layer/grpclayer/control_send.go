package grpclayer

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// linkKey is how a call that leaves the layers finds its connection.
type linkKey struct{}

var errNoLink = status.Error(codes.Internal, "grpclayer: the call has no connection")

func invokeOnLink(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return errNoLink
	}
	err := l.cc.Invoke(ctx, method, req, reply, opts...)
	l.judge(ctx, err)
	return err
}

func streamOnLink(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return nil, errNoLink
	}
	s, err := l.cc.NewStream(ctx, desc, method, opts...)
	l.judge(ctx, err)
	return s, err
}

// judge makes a refusal of an error that says no more than that there is no
// connection. Where there is one, the error is the call's own: its credentials
// may be unavailable. gRPC leaves the state Ready before any call can fail for
// that, as it first tries to connect again, and never comes back to it.
func (l *controlLink) judge(ctx context.Context, err error) {
	if a := attemptOf(ctx); a != nil && status.Code(err) == codes.Unavailable && !a.sent.Load() &&
		l.cc.GetState() != connectivity.Ready {
		a.refusal.Store(&refusal{l.lost})
	}
}

// sending hears when a call is given to a connection.
type sending struct{}

func (sending) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sending) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sending) HandleConn(context.Context, stats.ConnStats)                       {}

func (sending) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if a := attemptOf(ctx); a != nil {
		a.sent.Store(true)
	}
}
