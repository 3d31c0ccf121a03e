package linkerd

import (
	"context"
	"iter"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/oncelog"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// scheme is the GetDestination.Scheme that linkerd 2.6's proxy sends. Controllers ignore it.
const scheme = "k8s"

// Option configures [New].
type Option func(*options)

// options holds the settings of a Resolver.
type options struct {
	contextToken string
	backoff      resolve.Backoff
	limits       stream.Limits
	log          *slog.Logger
}

// WithContextToken sets the context token of each request. The token describes the client,
// for example {"ns":"default","nodeName":"n1"}. linkerd passes it to its proxies in
// LINKERD2_PROXY_DESTINATION_CONTEXT. The default is "".
func WithContextToken(token string) Option {
	return func(o *options) { o.contextToken = token }
}

// WithBackoff sets the wait before Get is called again after a stream has ended. The default is
// 100 ms to 60 s with a jitter of 0.1. A Min or Max of 0 means its default. If one of the fields
// is set, a Jitter of 0 means no jitter. Invalid values panic.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("linkerd: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}

// WithLogger sets the logger. The resolver logs a warning when a target's outage starts, and a
// line when it ends. Other failures and normal ends are logged at debug level. Each ignored part
// of a message is logged once as a warning, up to ten parts for a stream. With nil, the default,
// nothing is logged.
func WithLogger(log *slog.Logger) Option {
	return func(o *options) { o.log = log }
}

// New returns a Resolver that uses the destination controller to which conn is connected. Targets
// are service names with an optional port, such as "web.default.svc.cluster.local:80". The
// package documentation describes conn's settings. You must close conn. New panics if conn is
// nil.
func New(conn grpc.ClientConnInterface, opts ...Option) resolve.Resolver {
	if conn == nil {
		panic("linkerd: New: the connection is nil; want a gRPC connection to a destination controller")
	}
	o := &options{limits: stream.Limits{}.OrDefault()}
	option.Apply(o, opts)
	r := resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		// Each call of Resolve gets its own watch, because a watch counts what it has ignored.
		return func(yield func(resolve.Update, error) bool) {
			w := &watch{options: o, conn: conn, target: target}
			// Without a logger, ignored parts are dropped silently by the zero ignored.
			if o.log != nil {
				w.ignored = oncelog.Logger{Log: func(err error) {
					o.log.WarnContext(ctx, "part of a destination is ignored", "target", target, "err", err)
				}}
			}
			// Reconnect calls w.open for each stream, with a backoff between two of them.
			resolve.Reconnect(resolve.Func(w.open), o.backoff).Resolve(ctx, target)(yield)
		}
	})
	if o.log == nil {
		return r
	}
	// Around Reconnect, so that an outage is logged once and not for each attempt.
	return logged{r, o.log}
}
