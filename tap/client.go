package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
)

// Observe watches the process at the other end of conn: any that serves
// linkerd's io.linkerd.proxy.tap.Tap.
//
//	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 100, Match: match.PathPrefix("/api/")}) {
//
// One range over the sequence is one call of Observe; ranging again calls
// again. It ends with the stream: after Limit requests, or with an error as
// its last item, the cause of ctx among them. Breaking from the range releases
// the stream. conn stays the caller's.
func Observe(
	ctx context.Context, conn grpc.ClientConnInterface, req *pb.ObserveRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		err := observe(calling, conn, req, opts, func(e Event) bool { return yield(e, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(Event{}, fmt.Errorf("tap: observe: %w", context.Cause(ctx)))
		default:
			yield(Event{}, fmt.Errorf("tap: observe: %w", err))
		}
	}
}

// observe returns nil at the end of the stream, and when each had enough.
func observe(
	ctx context.Context, conn grpc.ClientConnInterface, req *pb.ObserveRequest, opts []grpc.CallOption,
	each func(Event) bool,
) error {
	stream, err := pb.NewTapClient(conn).Observe(ctx, req, opts...)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !each(eventOf(m)):
			return nil
		}
	}
}
