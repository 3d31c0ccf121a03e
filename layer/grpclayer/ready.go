package grpclayer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
)

// balancers are the balancers with the same settings: one for each ClientConn that
// has resolved its target and is not idle.
type balancers struct {
	first  atomic.Pointer[grpc.ClientConn] // the ClientConn of the first call
	shared atomic.Bool                     // another ClientConn had a call

	mu  sync.Mutex
	all []*towerBalancer
}

// called records the ClientConn of a call. b may be nil.
func (b *balancers) called(cc *grpc.ClientConn) {
	if b == nil || b.first.Load() == cc || b.first.CompareAndSwap(nil, cc) || b.first.Load() == cc {
		return
	}
	b.shared.Store(true)
}

func (b *balancers) add(t *towerBalancer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, t)
}

func (b *balancers) remove(t *towerBalancer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = slices.DeleteFunc(b.all, func(other *towerBalancer) bool { return other == t })
}

// only returns the balancer if there is exactly one, of one ClientConn. The
// readiness of a ClientConn does not apply to another one, which may be idle.
func (b *balancers) only() *towerBalancer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) != 1 || b.shared.Load() {
		return nil
	}
	return b.all[0]
}

// balanced is the innermost service of a client with our balancer. It is ready
// when the balancer is.
type balanced struct {
	Service
	at *balancers
}

// Ready waits for the balancer. Without a balancer the ClientConn is idle, new or
// closed, and a call makes one.
func (b *balanced) Ready(ctx context.Context) error {
	t := b.at.only()
	if t == nil {
		return nil
	}
	if err := t.balance.Ready(ctx); err != nil && t.ctx.Err() == nil {
		return err
	}
	return nil
}

// Describe describes the service without the balancer.
func (b *balanced) Describe() layer.Node { return layer.Describe(b.Service) }
