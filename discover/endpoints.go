package discover

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/refcount"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Endpoints resolves target and yields what changes about its endpoints, each
// with a service made by mk. Updates that change nothing yield nothing.
//
// The sequence goes on until ctx ends or the consumer breaks. An error of the
// resolver is news: it comes as Err, and the endpoints stay. The one exception
// is an error that matches [resolve.ErrUnresolvable]: the Change that carries
// it removes all endpoints and is the last one. A resolver that ends by itself
// leaves the last set in force.
//
// An endpoint whose [resolve.ID] changed serves on until the one that takes its
// place is ready: see [WithHandoverTimeout]. Then one Change removes it and adds the other.
// There is at most one endpoint for each address.
//
// A consumer sends nothing to a removed endpoint after it took the Change; from
// then on that endpoint's Call refuses with an error that matches
// [layer.ErrClosed], and its Ready ends with one, whoever waits in it, as it does
// when ctx ends. What is in flight goes on: the context of the endpoint's service
// ends when its last response did (see [WithCompletion]), or with ctx. When the consumer
// breaks, all endpoints are removed in this way.
//
// The sequence may be ranged over several times, also at once: each time it
// resolves anew and makes services of its own. While it is ranged over it has
// one goroutine, one more while mk makes the services of an update, another for
// each mk that does not return, and one for each service that is to take the
// place of another and is not ready.
//
// It panics if r or mk is nil.
func Endpoints[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, target string, mk MakeService[Req, Rsp], opts ...Option[Rsp],
) iter.Seq[Change[Req, Rsp]] {
	switch {
	case r == nil:
		panic("discover: nil resolver")
	case mk == nil:
		panic("discover: nil Make")
	}
	o := newOptions(opts)
	return func(yield func(Change[Req, Rsp]) bool) {
		resolving, stop := context.WithCancel(ctx)
		updates := make(chan news)
		go read(resolving, r, target, updates)
		w := newWatch(ctx, target, mk, o)
		w.stopped = resolving.Done()
		defer func() {
			w.release()
			stop()
			for range updates { // until the resolver has released all it held
			}
		}()
		w.run(updates, yield)
	}
}

// news is one item of a resolver: what an update changed, or an error.
type news struct {
	diff resolve.Diff
	all  bool // it was all there is, and not what is new
	err  error
}

// read applies updates where they arrive, because a resolver may use the
// memory of one again for the next. A resolver that panics has ended with an error.
func read(ctx context.Context, r resolve.Resolver, target string, out chan<- news) {
	defer close(out)
	send := func(n news) bool {
		select {
		case out <- n:
			return true
		case <-ctx.Done():
			return false
		}
	}
	err := panics.Do("the resolver", func() error {
		var set resolve.Set
		for update, err := range r.Resolve(ctx, target) {
			n := news{err: err}
			if err == nil {
				n.diff = set.Apply(update)
				n.all = update.Kind != resolve.Add && update.Kind != resolve.Remove
			}
			if !send(n) {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		send(news{err: fmt.Errorf("resolve %q: %w", target, err)})
	}
}

// isFinal says that nothing will ever come after err.
func isFinal(err error) bool { return errors.Is(err, resolve.ErrUnresolvable) }

// counted is a service whose responses count as open until they ended. Its
// context ends once it is retired and nothing is open.
type counted[Req, Rsp any] struct {
	refcount.Count
	inner    layer.Service[Req, Rsp]
	complete layer.Completion[Rsp]
}

// call serves one request for which Begin was true.
func (c *counted[Req, Rsp]) call(ctx context.Context, req Req) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			c.Done()
		}
	}()
	if rsp, err = c.inner.Call(ctx, req); err != nil {
		return rsp, err
	}
	handed = true
	return c.complete(ctx, rsp, c), nil
}

// Data and End make it the Observer of every response, so that none has to be
// made for each.
func (c *counted[Req, Rsp]) Data(int) {}

func (c *counted[Req, Rsp]) End(error) { c.Done() }
