package linkerd

import (
	"context"
	"fmt"
	"iter"
	"log/slog"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/profiles"
)

// scheme is the value of GetDestination.Scheme that linkerd's proxy sends. Controllers
// ignore it.
const scheme = "k8s"

// source is the Source of [New].
type source struct {
	options
	client destination.DestinationClient
}

// New returns a Source that requests profiles from the controller at conn. The caller closes conn
// after the last use. A target is a name with a port ("web.default.svc.cluster.local:80") or an
// address ("10.0.0.7:80"). New panics if conn is nil.
func New(conn grpc.ClientConnInterface, opts ...Option) profiles.Source {
	if conn == nil {
		panic("linkerd: New: the connection is nil; want a gRPC connection to a destination controller")
	}
	return &source{client: destination.NewDestinationClient(conn), options: newOptions(opts)}
}

// newOptions returns the options in opts, with defaults for the others.
func newOptions(opts []Option) options {
	o := options{limits: stream.Limits{}.OrDefault()}
	option.Apply(&o, opts)
	o.backoff = o.backoff.OrDefault()
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Watch yields target's profile, and again after each change.
func (s *source) Watch(ctx context.Context, target string) iter.Seq2[*profiles.Profile, error] {
	if !s.requests(target) {
		return s.outside(target)
	}
	// A status in final means that the controller will never have a profile for target.
	return follow(ctx, &follower[*destination.DestinationProfile]{
		options: &s.options, name: "profile", target: target,
		final: []codes.Code{codes.InvalidArgument, codes.FailedPrecondition},
		open: func(ctx context.Context) (receiver[*destination.DestinationProfile], error) {
			return s.client.GetProfile(ctx, &destination.GetDestination{Scheme: scheme, Path: target, ContextToken: s.contextToken})
		},
		convert: func(m *destination.DestinationProfile, drop func(error)) (*profiles.Profile, error) {
			return convert(m, drop), nil
		},
	})
}

// outside returns the sequence for a target that WithSuffixes and WithNetworks exclude. Its only
// item is an error that matches ErrNoProfile.
func (o *options) outside(target string) iter.Seq2[*profiles.Profile, error] {
	return func(yield func(*profiles.Profile, error) bool) {
		yield(nil, fmt.Errorf("linkerd: %q is not in the suffixes and networks: %w", target, profiles.ErrNoProfile))
	}
}
