package discover

import (
	"context"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/refcount"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// member is the Service for one endpoint. It calls the inner service, which MakeService returned,
// and counts the open responses. It is used as long as the endpoint's ID stays the same. After
// retire was called, the inner service's context ends with the last open response.
type member[Req, Rsp any] struct {
	refcount.Count
	inner    layer.Service[Req, Rsp]
	complete layer.Completion[Rsp]
	ctx      context.Context //nolint:containedctx // ends when the member is retired
	cancel   context.CancelFunc
	id       resolve.ID
	target   string

	current *Endpoint[Req, Rsp] // used only by the goroutine of the watch
}

// memberCtxKey is the context key of the context that ends when the endpoint is removed. The
// context that MakeService receives carries it as a value, and ends later, with the last response.
type memberCtxKey struct{}

// newMember returns the member for e. It makes the inner service by calling MakeService.
func (w *watch[Req, Rsp]) newMember(e resolve.Endpoint) *member[Req, Rsp] {
	m := &member[Req, Rsp]{complete: w.complete, id: e.ID, target: w.target}
	// The consumer gets m itself as the service, so that its calls are counted.
	m.current = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
	// m.ctx ends when the endpoint is removed.
	m.ctx, m.cancel = context.WithCancel(w.ctx) //nolint:gosec // see member.cancel
	// ctx ends later: when the endpoint is removed and its last response has ended. m.Ended is called then.
	var ctx context.Context
	ctx, m.Ended = context.WithCancel(context.WithValue(w.ctx, memberCtxKey{}, m.ctx)) //nolint:gosec // the Count cancels it
	// A panic of MakeService must not end the stream: this one endpoint rejects requests.
	err := panics.Do("MakeService", func() error {
		m.inner = w.mk(ctx, Target{Name: w.target, Endpoint: e})
		return nil
	})
	// It returned nil or panicked.
	if m.inner == nil {
		m.inner = failed[Req, Rsp]{m.error(layer.ErrClosed, "no service was made for it", err)}
	}
	return m
}

// failed is the service of an endpoint for which MakeService returned nil or panicked.
type failed[Req, Rsp any] struct{ err error }

// Ready returns an error that matches [layer.ErrClosed], so that the endpoint is never picked.
func (f failed[Req, Rsp]) Ready(context.Context) error { return f.err }

// Call rejects the request with the same error as Ready.
func (f failed[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, f.err }

// Describe returns a node without state.
func (f failed[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "no service"} }

// retire makes m reject requests. Its inner service's context ends after the last response of m.
func (m *member[Req, Rsp]) retire() {
	// Retire makes Call reject requests, and m.cancel makes Ready do so.
	m.Retire()
	m.cancel()
}

// Ready calls Ready of the inner service. After the endpoint was removed, Ready returns an error
// that matches [layer.ErrClosed].
func (m *member[Req, Rsp]) Ready(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return m.removed()
	}
	// Waits no longer than the endpoint is in use.
	err := layer.ReadyWhile(ctx, m.ctx, m.inner)
	// The wait may have ended because the endpoint was removed.
	if m.ctx.Err() != nil {
		return m.removed()
	}
	return err
}

// Call calls the inner service. It counts the request as open until the response has ended. If ctx has
// ended, or the endpoint was removed, Call rejects the request.
func (m *member[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, m.error(layer.ErrNotReady, ctxreason.Text(ctx), context.Cause(ctx))
	}
	// After Retire no request may begin.
	if !m.Begin() {
		return rsp, m.removed()
	}
	// Whether m.complete has taken over: then End is called when the response has ended.
	observed := false
	defer func() {
		if !observed { // an error or a panic, so m.End is not called
			// Done runs even if CloseBody panics.
			defer m.Done()
			layer.CloseBody(rsp)
		}
	}()
	// An error also means that there is no response to wait for.
	if rsp, err = m.inner.Call(ctx, req); err != nil {
		return rsp, err
	}
	// The completion calls End when the response has ended.
	rsp = m.complete(ctx, rsp, m)
	observed = true
	return rsp, nil
}

// Data implements [layer.Observer] and does nothing. A member is the observer of all its responses,
// because a separate observer for each response would be an allocation.
func (m *member[Req, Rsp]) Data(int) {}

// End implements [layer.Observer]. It counts the response as ended. The last one of a removed endpoint
// ends the service's context.
func (m *member[Req, Rsp]) End(error) { m.Done() }

// removed returns the error of requests after the endpoint was removed.
func (m *member[Req, Rsp]) removed() error {
	return m.error(layer.ErrClosed, "the endpoint was removed", nil)
}

// error returns an error about this endpoint.
func (m *member[Req, Rsp]) error(kind error, reason string, cause error) error {
	return &layer.Error{
		Layer: "discover", Target: m.target, Endpoint: m.id.Addr.String(), Kind: kind, Reason: reason, Err: cause,
	}
}

// Classifier implements [layer.Classified]. It returns the inner service's classifier.
func (m *member[Req, Rsp]) Classifier() layer.Classifier[Rsp] { return layer.ClassifierOf(m.inner) }

// Describe returns the inner service's description.
func (m *member[Req, Rsp]) Describe() layer.Node { return layer.Describe(m.inner) }
