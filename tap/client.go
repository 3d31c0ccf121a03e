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
	return stream(ctx, "observe", eventOf, func(ctx context.Context) (grpc.ServerStreamingClient[pb.TapEvent], error) {
		return pb.NewTapClient(conn).Observe(ctx, req, opts...)
	})
}

// stream is the sequence of the events of a call, which is made by each range.
func stream[M any](
	ctx context.Context, name string, eventOf func(*M) Event,
	call func(context.Context) (grpc.ServerStreamingClient[M], error),
) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		err := receive(calling, call, func(m *M) bool { return yield(eventOf(m), nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(Event{}, fmt.Errorf("tap: %s: %w", name, context.Cause(ctx)))
		default:
			yield(Event{}, fmt.Errorf("tap: %s: %w", name, err))
		}
	}
}

// receive returns nil at the end of the stream, and when each had enough.
func receive[M any](
	ctx context.Context, call func(context.Context) (grpc.ServerStreamingClient[M], error), each func(*M) bool,
) error {
	stream, err := call(ctx)
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
		case !each(m):
			return nil
		}
	}
}
