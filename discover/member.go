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

// member is the Service of one endpoint. It calls the service that MakeService returned, the inner
// service, and counts its open responses. It is used as long as the ID of the endpoint stays the
// same. After a call of retire, the context of the inner service ends with the last open response.
type member[Req, Rsp any] struct {
	refcount.Count
	inner    layer.Service[Req, Rsp]
	complete layer.Completion[Rsp]
	wanted   context.Context //nolint:containedctx // ends when the member is retired
	cancel   context.CancelFunc
	id       resolve.ID
	target   string

	current *Endpoint[Req, Rsp] // used only by the goroutine of the watch
}

// wantedKey is the context key of the context that ends when the endpoint is removed. The context of
// a MakeService has it as a value, and ends later, with the last response.
type wantedKey struct{}

// newMember returns the member for e. It makes the inner service by calling MakeService.
func (w *watch[Req, Rsp]) newMember(e resolve.Endpoint) *member[Req, Rsp] {
	m := &member[Req, Rsp]{complete: w.complete, id: e.ID, target: w.target}
	m.current = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
	m.wanted, m.cancel = context.WithCancel(w.ctx) //nolint:gosec // see member.cancel
	var ctx context.Context
	ctx, m.Ended = context.WithCancel(context.WithValue(w.ctx, wantedKey{}, m.wanted)) //nolint:gosec // the Count cancels it
	err := panics.Do("MakeService", func() error {
		m.inner = w.mk(ctx, Target{Name: w.target, Endpoint: e})
		return nil
	})
	if m.inner == nil {
		m.inner = failed[Req, Rsp]{m.error(layer.ErrClosed, "no service was made for it", err)}
	}
	return m
}

// failed is the service of an endpoint for which MakeService returned nil or panicked.
type failed[Req, Rsp any] struct{ err error }

func (f failed[Req, Rsp]) Ready(context.Context) error { return f.err }

func (f failed[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, f.err }

func (f failed[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "no service"} }

// retire makes m reject requests. The context of its inner service ends after the last
// response of m.
func (m *member[Req, Rsp]) retire() {
	m.Retire()
	m.cancel()
}

// Ready calls Ready of the inner service. After the endpoint was removed, Ready returns an error
// that matches [layer.ErrClosed].
func (m *member[Req, Rsp]) Ready(ctx context.Context) error {
	if m.wanted.Err() != nil {
		return m.removed()
	}
	err := layer.ReadyWhile(ctx, m.wanted, m.inner)
	if m.wanted.Err() != nil {
		return m.removed()
	}
	return err
}

// Call calls the inner service. It counts the request as open until the response has ended.
func (m *member[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, m.error(layer.ErrNotReady, ctxreason.Text(ctx), context.Cause(ctx))
	}
	if !m.Begin() {
		return rsp, m.removed()
	}
	observed := false
	defer func() {
		if !observed {
			defer m.Done()
			layer.CloseBody(rsp)
		}
	}()
	if rsp, err = m.inner.Call(ctx, req); err != nil {
		return rsp, err
	}
	rsp = m.complete(ctx, rsp, m)
	observed = true
	return rsp, nil
}

// Data does nothing. It is part of [layer.Observer]. A member is the observer of all its responses,
// because a separate observer for each response would be an allocation.
func (m *member[Req, Rsp]) Data(int) {}

// End implements [layer.Observer]. It counts the response as ended.
func (m *member[Req, Rsp]) End(error) { m.Done() }

func (m *member[Req, Rsp]) removed() error {
	return m.error(layer.ErrClosed, "the endpoint was removed", nil)
}

func (m *member[Req, Rsp]) error(kind error, reason string, cause error) error {
	return &layer.Error{
		Layer: "discover", Target: m.target, Endpoint: m.id.Addr.String(), Kind: kind, Reason: reason, Err: cause,
	}
}

// Classifier implements [layer.Classified]. It returns the classifier of the inner service.
func (m *member[Req, Rsp]) Classifier() layer.Classifier[Rsp] { return layer.ClassifierOf(m.inner) }

// Describe returns the description of the inner service.
func (m *member[Req, Rsp]) Describe() layer.Node { return layer.Describe(m.inner) }
