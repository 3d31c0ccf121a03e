package linkerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/freshstack"
	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/profiles"
)

// follower is the state of a watch on one target. It opens a new stream after each stream that
// ended.
type follower[M proto.Message] struct {
	*options

	name    string // the kind of resource that the stream has, for messages: "profile" or "policy"
	target  string
	open    func(ctx context.Context) (receiver[M], error)
	convert func(m M, drop func(error)) (*profiles.Profile, error)
	final   []codes.Code // the status codes that mean that the target has no profile

	received bool              // whether a message was received
	last     M                 // the last message
	profile  *profiles.Profile // converted from last
	err      error             // the error of converting last
	invalid  oncelog.Logger    // logs what is left out of profiles
}

// receiver is the client's side of a gRPC stream of messages.
type receiver[M any] interface{ Recv() (M, error) }

// follow returns the sequence of the profiles that w receives. When a stream ends, it opens a new
// stream after a backoff. An error that matches ErrNoProfile ends the sequence.
func follow[M proto.Message](ctx context.Context, w *follower[M]) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		w.invalid.Log = func(err error) {
			w.log.WarnContext(ctx, "left out of a "+w.name, "target", w.target, "err", err) //nolint:sloglint // the names are constants
		}
		final := func(err error) bool { return errors.Is(err, profiles.ErrNoProfile) }
		stream.Reconnect(ctx, w.backoff, w.stream, final)(yield)
	}
}

// stream opens one gRPC stream and yields its profiles. When ctx ends, the stream is
// canceled.
func (w *follower[M]) stream(ctx context.Context) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		// The watchdog cancels the stream when one of its time limits has passed.
		dog := w.limits.Begin(ctx, errNoAnswer)
		defer dog.Stop()
		err := w.read(dog, func(p *profiles.Profile) bool { return yield(p, nil) })
		if err != nil {
			yield(nil, w.failure(err))
		}
	}
}

// read opens one stream and yields its profiles. dog enforces the stream's time limits. read
// returns the error at the end of the stream, or nil if yield returned false.
func (w *follower[M]) read(dog *stream.Watchdog, yield func(*profiles.Profile) bool) error {
	// Wait starts the next time limit, or returns the error of one that has passed.
	if err := dog.Wait(); err != nil {
		return err
	}
	var messages receiver[M]
	var err error
	// Opening a stream needs a large stack, which is not kept while this goroutine waits.
	freshstack.Call(func() { messages, err = w.open(dog.Context()) })
	if err != nil {
		return dog.Cause(err)
	}
	for {
		if err := dog.Wait(); err != nil {
			return err
		}
		message, err := messages.Recv()
		if err != nil {
			// Cause returns the exceeded time limit, if that has ended the stream.
			return dog.Cause(err)
		}
		// Heard ends the limit for the first message. While the consumer handles the profile, silence does not count.
		dog.Pause()
		dog.Heard()
		var p *profiles.Profile
		freshstack.Call(func() { p, err = w.converted(message) })
		if err != nil {
			return err
		}
		if !yield(p) {
			return nil
		}
	}
}

// converted converts a message to a profile. If the message equals the previous one,
// converted returns the previous profile, because compiling all expressions again is slow.
func (w *follower[M]) converted(message M) (*profiles.Profile, error) {
	// A new stream usually begins with the same message as the one before.
	if !w.received || !proto.Equal(message, w.last) {
		w.received, w.last = true, message
		w.profile, w.err = w.convert(message, w.invalid.Add)
		w.invalid.End()
	}
	return w.profile, w.err
}

// failure returns the error to yield when a stream has ended with err. The error matches
// ErrNoProfile if err's status code means that there is no profile for the target: see w.final.
func (w *follower[M]) failure(err error) error {
	// gRPC ends a stream with io.EOF if the server has closed it without an error.
	if errors.Is(err, io.EOF) {
		err = stream.ErrEnded
	}
	if slices.Contains(w.final, status.Code(err)) {
		return fmt.Errorf("linkerd: get %s %q: %w: %w", w.name, w.target, profiles.ErrNoProfile, err)
	}
	return fmt.Errorf("linkerd: get %s %q: %w", w.name, w.target, err)
}
