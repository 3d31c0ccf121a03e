package kit

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// New returns a Resolver of what Instancers say. newInstancer makes one for a
// target; it is called when the first stream of the target begins, and again, after a
// back-off, when it returned an error, which is news; an error that matches
// [resolve.ErrUnresolvable] is final. All streams of a target share one
// Instancer. When the last of them ends, it is stopped; a stream that begins
// after that has a new one made.
//
// An event is all there is: a Replace, or Empty. An event with an error is
// news, and what was known stays in force. So does what is known of an instance
// whose name could not be looked up. An instance that cannot be read is an
// error, once until it can be read or is gone, and the others count; if none of
// an event's instances can be read, what was known stays. While a name could not
// be looked up, each stream looks up the names of the last event again, after a
// back-off, whether or not there is another event; it yields what that changes, and
// after that the error of the last event, if it had one, for that is not over. A
// stream that is slower than the events is told the latest.
//
// newInstancer may take its time: a stream that is left meanwhile does not wait for it,
// and what it makes is then stopped at once. It may be called for different
// targets at the same time. A nil newInstancer panics. A panic of newInstancer or of
// Register is an error as any other, and one of Deregister or Stop is dropped.
func New(newInstancer func(target string) (sd.Instancer, error), opts ...Option) resolve.Resolver {
	if newInstancer == nil {
		panic("kit: nil newInstancer")
	}
	r := &resolver{options: newOptions(opts), newInstancer: newInstancer, targets: make(map[string]*watch)}
	return resolve.Func(r.resolve)
}

type resolver struct {
	options
	newInstancer func(target string) (sd.Instancer, error)

	mu      sync.Mutex
	targets map[string]*watch
}

func (r *resolver) resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		w := r.enter(target)
		defer r.leave(w)
		read := reader{options: r.options, target: target}
		var seen uint64
		for ctx.Err() == nil {
			fresh, changed := w.after(seen)
			for _, e := range fresh {
				seen = e.number
				if !say(ctx, read.event(ctx, e.Event), yield) {
					return
				}
			}
			select {
			case <-changed:
			case <-read.again:
				if !say(ctx, read.retry(ctx), yield) {
					return
				}
			case <-ctx.Done():
			}
		}
	}
}

// say yields news, and returns whether there may be more.
func say(ctx context.Context, list []news, yield func(resolve.Update, error) bool) bool {
	for _, n := range list {
		if ctx.Err() != nil || !yield(n.update, n.err) || errors.Is(n.err, resolve.ErrUnresolvable) {
			return false
		}
	}
	return true
}

// enter joins the watch of a target, and starts it for the first one.
func (r *resolver) enter(target string) *watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.targets[target]
	if w == nil {
		w = startWatch(target, r.newInstancer, r.backoff)
		r.targets[target] = w
	}
	w.streams++
	return w
}

// leave ends the watch with its last stream, and waits for the Instancer to be
// stopped, unless it is still being made.
func (r *resolver) leave(w *watch) {
	r.mu.Lock()
	w.streams--
	last := w.streams == 0
	if last {
		delete(r.targets, w.target)
	}
	r.mu.Unlock()
	if last {
		w.end()
	}
}

// Option changes what New returns.
type Option interface{ apply(to *options) }

type options struct {
	parse   func(string) (resolve.Endpoint, error)
	lookup  func(context.Context, string) ([]netip.Addr, error)
	backoff resolve.Backoff
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithParse sets how the text of an instance is read, for sources that say more
// than "host:port", or say it otherwise. It takes the place of [WithLookup] as
// well. Its address must have a port, and not be 0.0.0.0 or ::. It may be called by several streams at
// the same time. The default, and nil, is "10.0.0.1:80" or "[fd00::1]:80".
func WithParse(parse func(instance string) (resolve.Endpoint, error)) Option {
	return option(func(o *options) { o.parse = parse })
}

// WithLookup sets how a host name becomes addresses; all of them are endpoints, but
// for 0.0.0.0 and ::, by which filters of DNS say that a name is blocked. It
// is called for each name in each event. Where it failed for one, or found no
// address, it is called again for all of that event after the [WithBackoff]. Else it
// is not called between events: names whose addresses move need a resolver that
// follows them. It may be called by several streams at the same time, and must
// return when ctx ends. The default, and nil, takes a name for an error.
func WithLookup(lookup func(ctx context.Context, host string) ([]netip.Addr, error)) Option {
	return option(func(o *options) { o.lookup = lookup })
}

// WithBackoff sets how long to wait before an Instancer that could not be made is
// tried again, or a name that could not be looked up. The default is 100 ms to 60 s
// with a tenth of jitter. A field that is 0 has its default; one that is out of range
// panics.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("kit: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}
