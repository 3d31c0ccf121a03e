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

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/profiles"
)

// scheme is what the proxy of linkerd 2.6 sends; controllers do not look at it.
const scheme = "k8s"

type source struct {
	options
	client destination.DestinationClient
}

// New returns a Source that asks the controller at the other end of conn, which
// stays the caller's, who closes it after the last use. Targets are names with
// a port ("web.default.svc.cluster.local:80") or addresses ("10.0.0.7:80");
// which are known is up to the controller.
func New(conn grpc.ClientConnInterface, opts ...Option) profiles.Source {
	s := &source{client: destination.NewDestinationClient(conn)}
	for _, opt := range opts {
		opt.apply(&s.options)
	}
	s.backoff = s.backoff.OrDefault()
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Watch yields the profiles of target as they come. See [profiles.Source].
func (s *source) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	if !s.opens(target) {
		return func(yield func(*profiles.Profile, error) bool) {
			yield(nil, fmt.Errorf("linkerd: %q is not among the names and networks that have profiles: %w", target, profiles.ErrNoProfile))
		}
	}
	open := func(ctx context.Context) iter.Seq2[*profiles.Profile, error] { return s.stream(ctx, target) }
	final := func(err error) bool { return errors.Is(err, profiles.ErrNoProfile) }
	return stream.Reconnect(ctx, s.backoff, open, final)
}

// stream is one GetProfile. Its ctx ends when it is given up, by which gRPC
// resets the stream.
func (s *source) stream(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		w := s.limits.Begin(ctx, errSilent)
		defer w.Stop()
		err := s.read(w, target, func(p *profiles.Profile) bool { return yield(p, nil) })
		if err != nil {
			yield(nil, failure(target, err))
		}
	}
}

// read returns why the stream ended; nil if the consumer broke.
func (s *source) read(w *stream.Watchdog, target string, yield func(*profiles.Profile) bool) error {
	drop := func(err error) {
		s.log.WarnContext(w.Context(), "left out of a profile", "target", target, "err", err)
	}
	if err := w.Wait(); err != nil {
		return err
	}
	messages, err := s.client.GetProfile(w.Context(), &destination.GetDestination{
		Scheme: scheme, Path: target, ContextToken: s.contextToken,
	})
	if err != nil {
		return w.Cause(err)
	}
	for {
		if err := w.Wait(); err != nil {
			return err
		}
		message, err := messages.Recv()
		if err != nil {
			return w.Cause(err)
		}
		w.Pause()
		w.Heard()
		if !yield(convert(message, drop)) {
			return nil
		}
	}
}

// failure says what the end of a stream means.
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
