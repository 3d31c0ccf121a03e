package layer

import (
	"context"
	"errors"
)

// Mirror sends copies of requests to another service, and drops what that
// answers: to see how a new version bears the traffic of the old one. The
// requests themselves, the primary ones, never wait for their copies, nor fail
// with them.
//
// A copy is sent when inner has returned, and the request's body was read to its
// end, whichever comes last. So requests that were refused have none, as they
// may still be served elsewhere; nor have those whose body inner did not read.
// Above a [Retry] or a [Hedge] there is one copy for all tries of a request.
// Below them there would be one for each.
//
// Admission: none of its own; Ready is forwarded, and to is never asked for it.
// A copy that to refuses is dropped.
//
// Cancellation: copies have no part in the caller's context: they go on when it
// ends, until the policy's Timeout or the end of ctx. They carry its [Route],
// and are of [PriorityBulk]. No copy is begun once ctx has ended.
//
// Body: what is read of a request's body is kept, as edit.Fork does it, up to
// the policy's Body. The body of a copy's response is read a little, as the
// protocol's Discard has it, see [WithReplayer], and closed.
//
// Errors: those of inner. Errors and panics of to, of edit.Fork and of the
// policy's Change are counted and shown by [Describe], and nothing else.
//
// Cost: for requests that are not copied, an atomic load and, where the Share is
// less than 1, a random number. For others a copy of the request's head, and of
// its body as it passes, and a goroutine. There is no bound on how many bodies
// are kept beside that on the requests themselves: MaxInFlight counts the copies
// that are being sent.
//
// MaxInFlight holds for all services that the layer is put on together. Without
// edit or to nothing is copied. What the policy says beyond its ranges is held
// to them; see Validate.
func Mirror[Req, Rsp any](
	ctx context.Context, to Service[Req, Rsp], edit Editor[Req, Rsp], p MirrorPolicy[Req], opts ...Option[Rsp],
) Layer[Req, Rsp] {
	o := newOptions(opts)
	m := &mirroring[Req, Rsp]{life: ctx, to: to, edit: edit, policy: p.orDefault(), resend: resendOf[Req](o), target: o.target}
	m.answered.to = o.to.Mirrored.With("outcome", "answered")
	m.failed.to = o.to.Mirrored.With("outcome", "failed")
	m.refused.to = o.to.Mirrored.With("outcome", "refused")
	m.full.to = o.to.Mirrored.With("outcome", "full")
	m.skipped.to = o.to.Mirrored.With("outcome", "skipped")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if to == nil || edit == nil || m.policy.Fraction == 0 {
			return next
		}
		return &mirror[Req, Rsp]{next, m}
	}
}

type mirror[Req, Rsp any] struct {
	Service[Req, Rsp]
	*mirroring[Req, Rsp]
}

func (m *mirror[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if !m.wants(req) {
		return m.Service.Call(ctx, req)
	}
	c := &mirrored[Req, Rsp]{mirroring: m.mirroring, route: RouteFromContext(ctx)}
	forked, ok := m.fork(req, c)
	if !ok {
		return m.Service.Call(ctx, req)
	}
	rsp, err := m.Service.Call(ctx, forked)
	if err == nil || !errors.Is(err, ErrNotReady) {
		c.happened()
	}
	return rsp, err
}

// fork returns what is sent in place of req; false if that is req, and there
// will be no copy. A panic is not worth a request.
func (m *mirroring[Req, Rsp]) fork(req Req, c *mirrored[Req, Rsp]) (forked Req, ok bool) {
	defer func() {
		if !ok {
			m.skip(recover())
		}
	}()
	return m.edit.TeeRequest(req, m.policy.MaxBodyBytes, c.whole), true
}

func (m *mirror[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

// Describe shows what became of the copies, and where they go.
func (m *mirror[Req, Rsp]) Describe() Node {
	n := Node{Name: "mirror", State: State{
		{"share", m.policy.Fraction}, {"in_flight", m.inFlight.Load()}, {"answered", m.answered.n.Load()},
		{"failed", m.failed.n.Load()}, {"refused", m.refused.n.Load()}, {"full", m.full.n.Load()},
		{"skipped", m.skipped.n.Load()},
	}}
	if last := m.last.Load(); last != nil {
		n.State = append(n.State, Attr{"last_error", *last})
	}
	to := Node{Name: "to", Next: new(Describe(m.to))}
	if m.policy.Target != "" {
		to.State = State{{"target", m.policy.Target}}
	}
	n.Children = []Node{to}
	return n
}
