package balance

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// refuse says why no endpoint is ready. It returns nil if one is.
func (b *Balancer[Req, Rsp]) refuse() error {
	n, err := b.look()
	if n == nil {
		return err
	}
	// What the endpoint says now is newer than what it said when it was set
	// aside; ask without the lock, it is the caller's code.
	reason := n.poll()
	if reason == nil {
		b.putBack(n, nil) // its goroutine is about to do that
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.reason != nil && reason.Error() == layer.ErrNotReady.Error() { // bare, it says less than what was said before
		reason = n.reason
	}
	return &layer.Error{
		Layer: "balance", Target: b.target, Endpoint: n.id.Addr.String(), Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("0 of %d endpoints ready", len(b.nodes)), Err: said{reason},
	}
}

// whenLeft is the refusal of an endpoint whose caller left meanwhile, so that no
// other is asked. Of a kind that would speak for the balancer it is only the cause.
func (b *Balancer[Req, Rsp]) whenLeft(ctx context.Context, refusal error) error {
	if !errors.Is(refusal, layer.ErrClosed) && !errors.Is(refusal, layer.ErrFailFast) {
		return refusal
	}
	return &layer.Error{
		Layer: "balance", Target: b.target, Kind: layer.ErrNotReady, Reason: left.Why(ctx), Err: said{refusal},
	}
}

// look returns why nothing can be picked: an error, or the node to ask. Both
// are nil if something can.
func (b *Balancer[Req, Rsp]) look() (*node[Req, Rsp], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ended := b.ended.Load(); ended != nil {
		return nil, ended
	}
	if b.group.len() > 0 {
		return nil, nil //nolint:nilnil // pick again
	}
	err := &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrNotReady}
	switch b.state {
	case resolve.StatePending:
		err.Reason, err.Err = "not resolved yet", b.err
	case resolve.StateEmpty:
		err.Err = withCause(discover.ErrNoEndpoints, b.err)
	case resolve.StateDoesNotExist:
		err.Err = withCause(discover.ErrDoesNotExist, b.err)
	default:
		if n := b.lastRefuser(); n != nil {
			return n, nil
		}
		err.Reason = "0 of 0 endpoints ready"
	}
	return nil, err
}

// withCause adds the resolver's last error, if there is one, to the state that it
// reported.
func withCause(state, resolver error) error {
	if resolver == nil {
		return state
	}
	return fmt.Errorf("%w: %w", state, resolver)
}

// lastRefuser returns the node that was the last to become unready, or any
// other if that one was removed. None of them is ready.
func (b *Balancer[Req, Rsp]) lastRefuser() *node[Req, Rsp] {
	if b.refuser != nil {
		return b.refuser
	}
	for _, n := range b.nodes {
		return n
	}
	return nil
}

// said is what an endpoint said, as the cause of what the balancer says. It
// matches what the endpoint's error matches, but for the kinds that would speak
// for the balancer: that one endpoint is closed, or has queued for too long,
// does not make the balancer so.
type said struct{ err error }

func (s said) Error() string { return s.err.Error() }

func (s said) Is(target error) bool {
	return target != layer.ErrClosed && target != layer.ErrFailFast && errors.Is(s.err, target)
}

func (s said) As(target any) bool { return errors.As(s.err, target) }
