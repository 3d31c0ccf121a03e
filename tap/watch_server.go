package tap

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// own is gotower's service; both have the name Tap.
type own struct {
	tappb.UnimplementedTapServer
	server *Server
}

// Watch serves one watcher, as Observe does: with headers that say that it is
// in place, and a trailer that says how many events were dropped.
func (o own) Watch(req *tappb.WatchRequest, stream grpc.ServerStreamingServer[tappb.WatchResponse]) error {
	s := o.server
	if err := s.access.permit(stream.Context()); err != nil {
		return refuse(codes.Unauthenticated, err)
	}
	t, err := s.reg.terms(req)
	if err != nil {
		return err
	}
	w, err := s.reg.watch(t)
	if err != nil {
		return err
	}
	return s.serve(stream, w.reader(true, func(e Event) error {
		m, err := e.watchMessage()
		if err != nil {
			return refuse(codes.Internal, err)
		}
		return stream.Send(m)
	}))
}

// WithDescribe lets those who may watch ask for the tree of layers of the process,
// such as [layer.Describe] returns it. It is called for each who asks. If it
// panics, the answer is one node, "describe", with the error.
func WithDescribe(tree func() layer.Node) ServerOption {
	return serverOption(func(s *Server) { s.describe = tree })
}

// Describe answers with the tree, what wraps before what is wrapped.
func (o own) Describe(ctx context.Context, _ *tappb.DescribeRequest) (*tappb.DescribeResponse, error) {
	if err := o.server.access.permit(ctx); err != nil {
		return nil, refuse(codes.Unauthenticated, err)
	}
	if o.server.describe == nil {
		return nil, refuse(codes.FailedPrecondition, errors.New("this process does not show its layers, see tap.WithDescribe"))
	}
	return described(o.server.describe), nil
}

// described asks for the tree. A layer that panics while it is looked at must
// not end the process that people look at because something is wrong.
func described(of func() layer.Node) (rsp *tappb.DescribeResponse) {
	defer func() {
		if p := recover(); p != nil {
			wrong := layer.Attr{Key: "error", Value: fmt.Sprintf("panic: %v", p)}
			rsp = &tappb.DescribeResponse{Nodes: []*tappb.Node{nodeProto(layer.Node{Name: "describe", State: layer.State{wrong}})}}
		}
	}()
	rsp = &tappb.DescribeResponse{}
	tree := of()
	for n := &tree; n != nil; n = n.Next {
		one := *n
		one.Next = nil
		rsp.Nodes = append(rsp.Nodes, nodeProto(one))
	}
	return rsp
}
