package balance

import (
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// noteFailed recomputes b.failed, and wakes those who wait in Ready if it has changed. It is called
// after each change of the endpoints. The caller must hold mu.
func (b *Balancer[Req, Rsp]) noteFailed() {
	if failed := b.failFast && b.hasFailed(); failed != b.failed.Load() {
		b.failed.Store(failed)
		b.changed.Wake()
	}
}

// hasFailed reports whether it is certain that no request can be served; see Config.FailFast. The caller
// must hold mu.
func (b *Balancer[Req, Rsp]) hasFailed() bool {
	// Before the first answer only an error of the resolver is certain; an empty set may fill later.
	switch b.state { //nolint:exhaustive // the other states have endpoints
	case resolve.StatePending:
		return b.err != nil
	case resolve.StateEmpty:
		return false
	case resolve.StateDoesNotExist:
		return true
	}
	// Endpoints that are down cannot be reached, are ejected, or have an open breaker. A busy one is not down.
	return b.readyLen() == 0 && len(b.nodes) > 0 && b.down == len(b.nodes)
}

// rejection returns the rejection of a request that no endpoint can serve, which must not wait in a
// queue if b.failed is true. The caller must hold mu.
func (b *Balancer[Req, Rsp]) rejection(reason string, cause error) *layer.Error {
	e := b.notReady(reason, cause)
	if b.failed.Load() {
		e.Kind = layer.ErrFailFast
	}
	return e
}

// failure returns the error of Ready with Config.FailFast, if every endpoint has failed. Otherwise it
// returns nil, also if an endpoint becomes ready meanwhile.
func (b *Balancer[Req, Rsp]) failure() error {
	if !b.failed.Load() {
		return nil
	}
	// If there is an endpoint, its reason is the best error, so noneReady returns its node instead of an
	// error. Both are nil if an endpoint is ready after all.
	n, err := b.noneReady()
	if n == nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unready(n, n.reason)
}

// unready returns the rejection for a request that found no ready node. It names the unready node n
// and wraps reason, which says why n is not ready. A nil reason means [discover.ErrNoEndpoints]. The
// caller must hold mu.
func (b *Balancer[Req, Rsp]) unready(n *node[Req, Rsp], reason error) error {
	if reason == nil {
		reason = discover.ErrNoEndpoints
	}
	e := b.rejection(zeroOf(len(b.nodes)), endpointError{reason})
	e.Endpoint = n.id.Addr.String()
	return e
}
