package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/tap/tappb"
)

// Watch shows the requests of this process that req asks for, until ctx ends or
// the time or the number that req gives is over.
//
//	for e, err := range reg.Watch(ctx, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}) {
//
// One range over the sequence is one watcher; ranging again is another. The
// watcher is in place when the range begins. An error is the last item: the
// cause of ctx, or why this may not be watched, with the gRPC status that
// [Watch] would have. Events that did not fit in the buffer are told of by an
// event with Dropped: as one for a request that is not shown for that, and one
// for each event that is missing of those shown.
//
// What the fields of req mean is said in tap.proto. Beyond that:
//
// A request is a request to an endpoint: each try is one, and sampled for
// itself.
//
// With max_rps, each watcher takes requests at instants of its own. Beyond the first,
// and where there are many more than are shown, two with the same rate see
// different ones.
//
// With a condition on the response, requests are kept back until they end, up
// to as many as events fit in the buffer and within its bytes; further ones are
// dropped, whatever becomes of them. The number of a stream is given, and the
// limit counts, when a request is found to match.
//
// Values of fields that are withheld cannot be compared with either, else one
// could be guessed a letter at a time.
//
// With explain, what the layers above said is in the ResponseEnd, if [Explain]
// stands above them; with body_bytes the bodies are, if [WithBodies] allows it and
// the access of the [Layer] is [BodyTee].
func (r *Registry) Watch(ctx context.Context, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := r.each(ctx, req, func(e Event) bool { return yield(e, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(Event{}, fmt.Errorf("tap: watch: %w", context.Cause(ctx)))
		default:
			yield(Event{}, err)
		}
	}
}

// each returns nil at the end of what was asked for, and when seen had enough.
func (r *Registry) each(ctx context.Context, req *tappb.WatchRequest, seen func(Event) bool) error {
	t, err := r.terms(req)
	if err != nil {
		return err
	}
	w, err := r.watch(t)
	if err != nil {
		return err
	}
	defer r.close(w)
	err = w.reader(true, func(e Event) error {
		if !seen(e) {
			return errEnough
		}
		return nil
	}).run(ctx, nil)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

var errEnough = errors.New("enough")

// Watch shows the requests of the process at the other end of conn, which
// serves gotower's own service, see [Server.Register]. It is to [Registry.Watch]
// what [Observe] is to linkerd's.
func Watch(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "watch", watchEventOf, func(ctx context.Context) (grpc.ServerStreamingClient[tappb.WatchResponse], error) {
		return tappb.NewTapClient(conn).Watch(ctx, req, opts...)
	})
}
