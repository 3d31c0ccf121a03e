package linkerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/profiles"
)

// scheme is the value that linkerd's proxy sends; controllers ignore it.
const scheme = "k8s"

type source struct {
	options
	client destination.DestinationClient
}

// New returns a Source that requests profiles from the controller at conn. The caller closes conn
// after the last use. A target is a name with a port ("web.default.svc.cluster.local:80") or an
// address ("10.0.0.7:80"). A nil conn panics.
func New(conn grpc.ClientConnInterface, opts ...Option) profiles.Source {
	if conn == nil {
		panic("linkerd: New: the connection is nil; want a gRPC connection to a destination controller")
	}
	s := &source{client: destination.NewDestinationClient(conn)}
	s.limits = stream.Limits{}.OrDefault()
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&s.options)
		}
	}
	s.backoff = s.backoff.OrDefault()
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Watch implements [profiles.Source].
func (s *source) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	if !s.requests(target) {
		return func(yield func(*profiles.Profile, error) bool) {
			yield(nil, fmt.Errorf("linkerd: %q is not in the suffixes and networks: %w", target, profiles.ErrNoProfile))
		}
	}
	return func(yield func(*profiles.Profile, error) bool) {
		w := follower{source: s, target: target}
		w.invalid.Log = func(err error) {
			s.log.WarnContext(ctx, "left out of a profile", "target", target, "err", err)
		}
		final := func(err error) bool { return errors.Is(err, profiles.ErrNoProfile) }
		stream.Reconnect(ctx, s.backoff, w.stream, final)(yield)
	}
}

// follower is the watch of one target. It reopens its stream.
type follower struct {
	*source
	target string

	last    *destination.DestinationProfile
	profile *profiles.Profile // converted from last
	invalid oncelog.Logger
}

// stream calls GetProfile and yields its profiles. When ctx ends, the stream is reset.
func (w *follower) stream(ctx context.Context) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		dog := w.limits.Begin(ctx, errNoAnswer)
		defer dog.Stop()
		err := w.read(dog, func(p *profiles.Profile) bool { return yield(p, nil) })
		if err != nil {
			yield(nil, failure(w.target, err))
		}
	}
}

// read yields profiles until the stream ends. It returns the error of the stream, or
// nil if yield returned false.
func (w *follower) read(dog *stream.Watchdog, yield func(*profiles.Profile) bool) error {
	if err := dog.Wait(); err != nil {
		return err
	}
	messages, err := w.client.GetProfile(dog.Context(), &destination.GetDestination{
		Scheme: scheme, Path: w.target, ContextToken: w.contextToken,
	})
	if err != nil {
		return dog.Cause(err)
	}
	for {
		if err := dog.Wait(); err != nil {
			return err
		}
		message, err := messages.Recv()
		if err != nil {
			return dog.Cause(err)
		}
		dog.Pause()
		dog.Heard()
		if !yield(w.convert(message)) {
			return nil
		}
	}
}

// convert converts a message. If the message equals the previous one, it returns the
// previous profile, because compiling all expressions again is slow.
func (w *follower) convert(message *destination.DestinationProfile) *profiles.Profile {
	if w.last == nil || !proto.Equal(message, w.last) {
		w.last, w.profile = message, convert(message, w.invalid.Add)
		w.invalid.End()
	}
	return w.profile
}

// failure returns the error to yield when a stream for target ended with err.
func failure(target string, err error) error {
	if errors.Is(err, io.EOF) {
		err = stream.ErrEnded
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return fmt.Errorf("linkerd: get profile %q: %w: %w", target, profiles.ErrNoProfile, err)
	default:
		return fmt.Errorf("linkerd: get profile %q: %w", target, err)
	}
}
