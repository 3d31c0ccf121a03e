package meters

import (
	"context"
	"time"
)

// term is a lease with a sign of whether it is to be had. Who writes to series
// once in a while looks at it before, since they are let go behind its back.
type term struct {
	*lease
	ctx   context.Context //nolint:containedctx // what the lease ends a while after; nil: it ends by itself
	renew time.Time       // when it is time for another one of those
}

func (m *Meters) term(ctx context.Context) *term { return &term{lease: m.lease(ctx), ctx: ctx} }

// late is for those who still write to what is gone: it lasts a while from now,
// which is renewed if they go on.
func (m *Meters) late() *term {
	often := m.retain / 8
	t := &term{lease: new(lease), renew: time.Now().Add(often)}
	time.AfterFunc(m.retain+often, t.end)
	return t
}

// holds reports whether the series are shown for as long as RetainIdle from now.
func (t *term) holds() bool {
	if t.ctx == nil {
		return time.Now().Before(t.renew)
	}
	return t.ctx.Err() == nil
}
