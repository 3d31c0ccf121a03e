package discover

import (
	"context"
	"time"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/layer"
)

// member is one endpoint for as long as its ID stays. It is the endpoint's
// Service.
type member[Req, Rsp any] struct {
	counted[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the life of the service, handed to Make
	target Target

	batch int  // in which it is made
	heir  bool // it is to take the place of another
	fit   bool // an heir that did not have to be waited for when it was made

	// The rest is the watch's alone.

	now       *Endpoint[Req, Rsp] // what is known of it
	isMade    bool
	stopWait  context.CancelFunc // of the wait for its Ready; nil if there is none
	successor *member[Req, Rsp]  // what takes its place once that is ready; nil if its ID is current
	leaveBy   time.Time          // when the successor takes its place anyway
}

// latest is what the resolver knows at the address of m.
func (m *member[Req, Rsp]) latest() *member[Req, Rsp] {
	if m.successor != nil {
		return m.successor
	}
	return m
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
		return none, m.refuse(layer.ErrNotReady, left.Why(ctx), context.Cause(ctx))
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
