package kit

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// New returns a Resolver that uses go-kit Instancers. newInstancer creates one for a target
// when its first stream starts. If it returns an error, the error is yielded and newInstancer
// is called again after a backoff, unless the error matches [resolve.ErrUnresolvable]. All
// streams of a target share one Instancer, which is stopped after the last of them.
//
// An event is the whole set: a Replace or Empty. An event with an error is yielded as
// an error and leaves the endpoints unchanged. An instance that cannot be parsed is
// omitted and yields one error. If no instance can be parsed, the last set stays. A
// slow consumer gets only the latest event.
//
// newInstancer may block and may be called concurrently. A stream that ends does not wait for
// it. If it returns an Instancer after that, the Instancer is stopped. New panics if
// newInstancer is nil. A panic of newInstancer or Register is yielded as an error.
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
				if !emit(ctx, read.event(e.Event), yield) {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// emit yields the items in list. It reports whether the stream continues.
func emit(ctx context.Context, list []item, yield func(resolve.Update, error) bool) bool {
	for _, n := range list {
		if ctx.Err() != nil || !yield(n.update, n.err) || errors.Is(n.err, resolve.ErrUnresolvable) {
			return false
		}
	}
	return true
}

// enter adds a stream to the watch of a target. It starts the watch for the first stream.
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

// leave removes a stream. After the last stream it waits until the Instancer is
// stopped, but not for newInstancer.
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

// Option configures [New].
type Option interface{ apply(to *options) }

type options struct {
	parse   func(string) (resolve.Endpoint, error)
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
	if o.parse == nil {
		o.parse = parseAddress
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithParse sets the function that parses an instance, for sources that use another form than
// "host:port" or add information. The address must have a port and must not be 0.0.0.0 or ::.
// parse may be called concurrently. With nil, the default, "10.0.0.1:80" and "[fd00::1]:80" are
// parsed. Host names are not looked up: use package dns for these.
func WithParse(parse func(instance string) (resolve.Endpoint, error)) Option {
	return option(func(o *options) { o.parse = parse })
}

// WithBackoff sets the wait before newInstancer is called again after an error. The
// default is 100 ms to 60 s with a jitter of 0.1. A field that is 0 has its default. It
// panics if a field is out of range.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("kit: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}
