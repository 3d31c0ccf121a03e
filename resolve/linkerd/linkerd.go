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

	"github.com/gotower/gotower/internal/remark"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/resolve"
)

// scheme is what the proxy of linkerd 2.6 sends; controllers do not look at it.
const scheme = "k8s"

// Option changes what New returns.
type Option interface{ apply(*options) }

type options struct {
	contextToken string
	backoff      resolve.Backoff
	limits       stream.Limits
	log          *slog.Logger
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

// ContextToken sets the context token of each request: what tells the
// controller who asks, such as {"ns":"default","nodeName":"n1"}. Linkerd hands
// it to its proxies as LINKERD2_PROXY_DESTINATION_CONTEXT. The default is none.
func ContextToken(token string) Option {
	return option(func(o *options) { o.contextToken = token })
}

// Backoff sets how long to wait before Get is called again. The default is
// 100 ms to 60 s with a tenth of jitter. What is not valid is made so, as
// [resolve.Reconnect] says.
func Backoff(b resolve.Backoff) Option {
	return option(func(o *options) { o.backoff = b })
}

// Logger makes the resolver log: a warning when the news of a target stop,
// and a line when they are back. The attempts in between, and streams that end
// cleanly after they brought something, are debug lines. What cannot be used of
// a message is a warning, once and ten of a stream at most: an address that
// nobody can connect to, and a TLS identity that comes to cleartext. The
// default, and nil, is silence.
func Logger(log *slog.Logger) Option {
	return option(func(o *options) { o.log = log })
}

// New returns a Resolver that asks the destination controller at the other end
// of conn. Its targets are names of services with an optional port, such as
// "web.default.svc.cluster.local:80"; which names are known is up to the
// controller. See the package's documentation for the settings of conn that
// matter. conn stays the caller's, who closes it after the last use.
func New(conn grpc.ClientConnInterface, opts ...Option) resolve.Resolver {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	client := destination.NewDestinationClient(conn)
	r := resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			g := get{client: client, contextToken: o.contextToken, limits: o.limits, amiss: new(remark.Remarks)}
			if o.log != nil {
				g.amiss.Say = func(err error) {
					o.log.WarnContext(ctx, "left out of a destination", "target", target, "err", err)
				}
			}
			resolve.Reconnect(resolve.Func(g.resolve), o.backoff).Resolve(ctx, target)(yield)
		}
	})
	if o.log == nil {
		return r
	}
	return logged{r, o.log}
}

// get makes one Get a stream. What is first in it, and what follows its end, is
// the work of resolve.Reconnect; so is the end of ctx after a break, by which
// gRPC resets the stream.
type get struct {
	client       destination.DestinationClient
	contextToken string
	limits       stream.Limits
	amiss        *remark.Remarks
}

func (g get) resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		w := g.limits.Begin(ctx, errSilent)
		defer w.Stop()
		defer g.amiss.End()
		err := g.read(w, target, func(u resolve.Update) bool { return yield(u, nil) })
		if err != nil {
			yield(resolve.Update{}, failure(target, err))
		}
	}
}

// read returns why the stream ended; nil if the consumer broke.
func (g get) read(w *stream.Watchdog, target string, yield func(resolve.Update) bool) error {
	if err := w.Wait(); err != nil {
		return err
	}
	updates, err := g.client.Get(w.Context(), &destination.GetDestination{
		Scheme: scheme, Path: target, ContextToken: g.contextToken,
	})
	if err != nil {
		return w.Cause(err)
	}
	for {
		if err := w.Wait(); err != nil {
			return err
		}
		message, err := updates.Recv()
		if err != nil {
			return w.Cause(err)
		}
		w.Pause()
		if u, ok := update(message, g.amiss.Add); ok {
			if u.Kind != resolve.Remove { // which, as the first, says nothing: see resolve.Reconnect
				w.Heard()
			}
			if !yield(u) {
				return nil
			}
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
		return fmt.Errorf("linkerd: get %q: %w: %w", target, resolve.ErrUnresolvable, err)
	}
	return fmt.Errorf("linkerd: get %q: %w", target, err)
}
