package kit

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// New returns a Resolver that uses go-kit Instancers. newInstancer creates a target's Instancer
// when its first stream starts. If it returns an error, the error is yielded, and newInstancer is
// called again after a backoff, unless the error matches [resolve.ErrUnresolvable]. All streams for
// a target share one Instancer, which is stopped when the last stream has ended.
//
// Each event from an Instancer is yielded as a Replace or an Empty, or as an error, which leaves
// the endpoints unchanged. An instance that cannot be parsed is omitted and yields one error. If no
// instance can be parsed, the last set stays. A slow consumer gets only the latest event.
//
// newInstancer may block and may be called concurrently. A stream that ends does not wait for it.
// If newInstancer returns an Instancer after that, it is stopped. New panics if newInstancer is
// nil. A panic in newInstancer or Register is yielded as an error.
func New(newInstancer func(target string) (sd.Instancer, error), opts ...Option) resolve.Resolver {
	if newInstancer == nil {
		panic("kit: nil newInstancer")
	}
	r := &resolver{options: newOptions(opts), newInstancer: newInstancer}
	return resolve.Func(r.resolve)
}

// resolver is the Resolver that New returns.
type resolver struct {
	options
	newInstancer func(target string) (sd.Instancer, error)

	targets share.Group[string, *watch] // one for each target that has a stream
}

// resolve yields the updates of target, as New describes. Each stream reads the events of the target's
// shared watch by itself, because it looks up names and remembers its errors by itself.
func (r *resolver) resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		// Use starts the watch for the first stream of this target, and leave ends it after the last one.
		w, leave := r.targets.Use(target, func() (*watch, func()) {
			w := startWatch(target, r.newInstancer, r.backoff)
			return w, w.end
		})
		defer leave()
		read := reader{options: r.options, target: target, names: newNames(ctx, r.names)}
		defer read.names.end()
		// The position counts what this stream has seen of the shared watch.
		var pos share.Position
		for ctx.Err() == nil {
			c := w.Look(&pos)
			// First the event, then the error: a new stream during an outage yields its endpoints first.
			if c.Fresh && !emit(ctx, read.event(c.Value), yield) {
				return
			}
			if c.Err != nil && !emit(ctx, []item{{err: fmt.Errorf("kit: %q: %w", target, c.Err)}}, yield) {
				return
			}
			// Next is closed at the watch's next change. names.changed receives when a name has other addresses.
			select {
			case <-c.Next:
			case <-read.names.changed:
				if !emit(ctx, read.current(), yield) {
					return
				}
			case <-ctx.Done():
			}
		}
	}
}

// emit yields the items in list. It returns false if the stream must end.
func emit(ctx context.Context, list []item, yield func(resolve.Update, error) bool) bool {
	for _, n := range list {
		// An item may end the stream: ErrUnresolvable is always the last one.
		if ctx.Err() != nil || !yield(n.update, n.err) || errors.Is(n.err, resolve.ErrUnresolvable) {
			return false
		}
	}
	return true
}

// Option configures [New].
type Option func(*options)

// options holds the settings of a Resolver.
type options struct {
	parse   func(string) (resolve.Endpoint, error)
	backoff resolve.Backoff
	names   resolve.Resolver
}

// newOptions returns the settings in opts, and the defaults for all others.
func newOptions(opts []Option) options {
	var o options
	option.Apply(&o, opts)
	if o.parse == nil {
		o.parse = parseInstance
	}
	if o.names == nil {
		o.names = dns.New()
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithParse sets the function that parses an instance, for sources that use another form or add
// information. The address in the result must have a port and must not be 0.0.0.0 or ::. parse
// may be called concurrently. The default, also for nil, parses "10.0.0.1:80", "[fd00::1]:80",
// names such as "web.default:80" and URLs such as "https://web.default/path". Names are looked
// up; see [WithNames]. With [Opaque], any text is an instance, for go-kit's factories.
func WithParse(parse func(instance string) (resolve.Endpoint, error)) Option {
	return func(o *options) { o.parse = parse }
}

// WithNames sets the resolver for the names in instances, which gets the host and port. The default is
// that of package dns. The endpoints follow its changes. An endpoint's label "instance" keeps the text
// that was registered, and an https URL sets its server name. A nil resolver panics.
func WithNames(r resolve.Resolver) Option {
	if r == nil {
		panic("kit: nil resolver")
	}
	return func(o *options) { o.names = r }
}

// WithBackoff sets the wait before newInstancer is called again after an error. The default is
// 100 ms to 60 s with a jitter of 0.1. A Min or Max of 0 means its default. If one of the fields
// is set, a Jitter of 0 means no jitter. It panics if a field is out of range.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("kit: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}
