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
)

// New returns a Resolver that uses go-kit Instancers. newInstancer creates the Instancer of a
// target when the first stream of the target starts. If newInstancer returns an error, the error is
// yielded. newInstancer is then called again after a backoff, unless the error matches
// [resolve.ErrUnresolvable]. All streams of a target share one Instancer, which is stopped when the
// last stream has ended.
//
// Each event of an Instancer is yielded as a Replace or an Empty. An event with an error is
// yielded as an error and leaves the endpoints unchanged. An instance that cannot be parsed is
// omitted and yields one error. If no instance can be parsed, the last set stays. A slow consumer
// gets only the latest event.
//
// newInstancer may block and may be called concurrently. A stream that ends does not wait
// for it. If newInstancer returns an Instancer after that, the Instancer is stopped. New
// panics if newInstancer is nil. A panic of newInstancer or Register is yielded as an
// error.
func New(newInstancer func(target string) (sd.Instancer, error), opts ...Option) resolve.Resolver {
	if newInstancer == nil {
		panic("kit: nil newInstancer")
	}
	r := &resolver{options: newOptions(opts), newInstancer: newInstancer}
	return resolve.Func(r.resolve)
}

type resolver struct {
	options
	newInstancer func(target string) (sd.Instancer, error)

	targets share.Group[string, *watch]
}

func (r *resolver) resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		w, leave := r.targets.Use(target, func() (*watch, func()) {
			w := startWatch(target, r.newInstancer, r.backoff)
			return w, w.end
		})
		defer leave()
		read := reader{options: r.options, target: target}
		var seen share.Position
		for ctx.Err() == nil {
			c := w.Look(&seen)
			if c.Fresh && !emit(ctx, read.event(c.Value), yield) {
				return
			}
			if c.Err != nil && !emit(ctx, []item{{err: fmt.Errorf("kit: %q: %w", target, c.Err)}}, yield) {
				return
			}
			select {
			case <-c.Next:
			case <-ctx.Done():
			}
		}
	}
}

// emit yields the items in list. It returns false if the stream must end.
func emit(ctx context.Context, list []item, yield func(resolve.Update, error) bool) bool {
	for _, n := range list {
		if ctx.Err() != nil || !yield(n.update, n.err) || errors.Is(n.err, resolve.ErrUnresolvable) {
			return false
		}
	}
	return true
}

// Option configures [New].
type Option func(*options)

type options struct {
	parse   func(string) (resolve.Endpoint, error)
	backoff resolve.Backoff
}

func newOptions(opts []Option) options {
	var o options
	option.Apply(&o, opts)
	if o.parse == nil {
		o.parse = parseAddress
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithParse sets the function that parses an instance, for sources that use another form
// than "host:port" or add information. The address in the result must have a port and must
// not be 0.0.0.0 or ::. parse may be called concurrently. The default, also for nil, parses
// "10.0.0.1:80" and "[fd00::1]:80". Host names are not looked up: use package dns for
// these.
func WithParse(parse func(instance string) (resolve.Endpoint, error)) Option {
	return func(o *options) { o.parse = parse }
}

// WithBackoff sets the wait before newInstancer is called again after an error. The default is
// 100 ms to 60 s with a jitter of 0.1. A Min or Max of 0 has its default. If one of the fields is
// set, a Jitter of 0 means no jitter. It panics if a field is out of range.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("kit: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}
