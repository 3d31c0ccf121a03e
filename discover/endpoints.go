package discover

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// patience is how long the rest of an update waits for the services that the
// same update asks for. A Make returns at once, so that one update is one
// change and replacing all endpoints leaves no gap; one that does not return
// must not keep endpoints in use that are gone.
const patience = 10 * time.Millisecond

// Endpoints resolves target and yields what changes about its endpoints, each
// with a service made by mk. Updates that change nothing yield nothing.
//
// The sequence goes on until ctx ends or the consumer breaks. An error of the
// resolver is news: it comes as Err, and the endpoints stay. The one exception
// is an error that matches [resolve.ErrUnresolvable]: the Change that carries
// it removes all endpoints and is the last one. A resolver that ends by itself
// leaves the last set in force.
//
// A consumer sends nothing to a removed endpoint after it took the Change; from
// then on that endpoint's Call refuses with an error that matches
// [layer.ErrClosed]. What is in flight goes on: the context of the endpoint's
// service ends when its last response did (see [Until]), or with ctx. When the
// consumer breaks, all endpoints are removed in this way.
//
// The sequence may be ranged over several times, also at once: each time it
// resolves anew and makes services of its own. While it is ranged over it has
// one goroutine, and one more while mk runs.
func Endpoints[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, target string, mk Make[Req, Rsp], opts ...Option[Rsp],
) iter.Seq[Change[Req, Rsp]] {
	o := newOptions(opts)
	return func(yield func(Change[Req, Rsp]) bool) {
		resolving, stop := context.WithCancel(ctx)
		updates := make(chan news)
		go read(resolving, r, target, updates)
		w := &watch[Req, Rsp]{
			ctx: ctx, stopped: resolving.Done(), target: target, mk: mk, complete: o.complete,
			members: make(map[resolve.ID]*member[Req, Rsp]), made: make(chan *member[Req, Rsp]),
		}
		w.patience = time.NewTimer(patience)
		defer func() {
			w.patience.Stop()
			for _, m := range w.members {
				m.Retire()
			}
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
	err  error
}

// read applies updates where they arrive, because a resolver may use the
// memory of one again for the next.
func read(ctx context.Context, r resolve.Resolver, target string, out chan<- news) {
	defer close(out)
	var set resolve.Set
	for update, err := range r.Resolve(ctx, target) {
		n := news{err: err}
		if err == nil {
			n.diff = set.Apply(update)
		}
		select {
		case out <- n:
		case <-ctx.Done():
			return
		}
	}
}

// isFinal says that nothing will ever come after err.
func isFinal(err error) bool { return errors.Is(err, resolve.ErrUnresolvable) }

// member is one endpoint for as long as its ID stays. It is the endpoint's
// Service.
type member[Req, Rsp any] struct {
	counted[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the life of the service, handed to Make
	target Target

	now     *Endpoint[Req, Rsp] // what is known of it; the watch's alone
	isMade  bool                // the watch's alone
	dropped bool                // removed before it was made; the watch's alone
}

func (m *member[Req, Rsp]) Ready(ctx context.Context) error {
	if m.IsGone() {
		return m.refuse(layer.ErrClosed, "the endpoint is gone", nil)
	}
	return m.inner.Ready(ctx)
}

func (m *member[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, m.refuse(layer.ErrNotReady, "the caller has gone", context.Cause(ctx))
	}
	if !m.Begin() {
		return none, m.refuse(layer.ErrClosed, "the endpoint is gone", nil)
	}
	return m.call(ctx, req)
}

func (m *member[Req, Rsp]) refuse(kind error, reason string, cause error) error {
	return &layer.Error{
		Layer: "discover", Target: m.target.Name, Endpoint: m.target.Endpoint.Addr.String(),
		Kind: kind, Reason: reason, Err: cause,
	}
}

// Describe is that of the service inside: the counting is not worth a line.
func (m *member[Req, Rsp]) Describe() layer.Node { return layer.Describe(m.inner) }
