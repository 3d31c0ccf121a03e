package grpclayer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
)

// balancers holds the balancers of all ClientConns that were made with the same result of
// [DialOptions]. A ClientConn lacks a balancer until it resolves its target, and while it is idle.
type balancers struct {
	first  atomic.Pointer[grpc.ClientConn] // the ClientConn of the first call
	shared atomic.Bool                     // a second ClientConn has had a call

	mu  sync.Mutex
	all []*towerBalancer
}

// called records that cc has made a call. It does nothing if b is nil.
func (b *balancers) called(cc *grpc.ClientConn) {
	// The pointer is checked twice, because another call may have stored cc in between.
	if b == nil || b.first.Load() == cc || b.first.CompareAndSwap(nil, cc) || b.first.Load() == cc {
		return
	}
	b.shared.Store(true)
}

// add adds a balancer that has started.
func (b *balancers) add(t *towerBalancer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, t)
}

// remove removes a balancer that was closed.
func (b *balancers) remove(t *towerBalancer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.DeleteFunc(b.all, func(other *towerBalancer) bool { return other == t })
}

// only returns the balancer in b if there is exactly one, and all calls were made through the
// same ClientConn. Otherwise it returns nil, because the next call may use another balancer or
// need a new one.
func (b *balancers) only() *towerBalancer {
	b.mu.Lock()
	defer b.mu.Unlock()
	// With several ClientConns it is unknown which one the next call uses.
	if len(b.all) != 1 || b.shared.Load() {
		return nil
	}
	return b.all[0]
}

// balanced is the service below the layers of [WithCallLayer]. It is ready when the client's gRPC
// balancer is ready.
type balanced struct {
	Service
	at *balancers
}

// Ready waits until the balancer is ready. Without a balancer it returns nil at once, because a
// call then starts one. It also returns nil at once if several ClientConns have made calls.
func (b *balanced) Ready(ctx context.Context) error {
	t := b.at.only()
	if t == nil {
		return nil
	}
	// An error due to the end of the balancer is not the call's: the next call starts another balancer.
	if err := t.balance.Ready(ctx); err != nil && t.ctx.Err() == nil {
		return err
	}
	return nil
}

// Describe describes the wrapped service. The balancer is not included, see
// [WithOnBalancer].
func (b *balanced) Describe() layer.Node { return layer.Describe(b.Service) }
