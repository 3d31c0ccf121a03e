package tap

import (
	"context"
	"errors"

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

// Describing lets those who may watch ask for the tree of layers of the process,
// such as [layer.Describe] returns it. It is called for each who asks.
func Describing(tree func() layer.Node) ServerOption {
	return serverOption(func(s *Server) { s.describe = tree })
}

// Describe answers with the tree, what wraps before what is wrapped.
func (o own) Describe(ctx context.Context, _ *tappb.DescribeRequest) (*tappb.DescribeResponse, error) {
	if err := o.server.access.permit(ctx); err != nil {
		return nil, refuse(codes.Unauthenticated, err)
	}
	if o.server.describe == nil {
		return nil, refuse(codes.FailedPrecondition, errors.New("this process does not show its layers, see tap.Describing"))
	}
	rsp := &tappb.DescribeResponse{}
	tree := o.server.describe()
	for n := &tree; n != nil; n = n.Next {
		one := *n
		one.Next = nil
		rsp.Nodes = append(rsp.Nodes, nodeProto(one))
	}
	return rsp, nil
}
