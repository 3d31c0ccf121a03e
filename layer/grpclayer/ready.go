package grpclayer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
)

// balancers are those at work with the same settings: one for each ClientConn
// that has resolved its target and is not idle.
type balancers struct {
	first  atomic.Pointer[grpc.ClientConn] // of which there was a call
	shared atomic.Bool                     // there were calls of others

	mu  sync.Mutex
	all []*towerBalancer
}

// called is told of every call, before the layers. A nil b needs not know.
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

// only returns the balancer, if there is exactly one, and it is the caller's: that
// of one ClientConn says nothing of another, which may be idle.
func (b *balancers) only() *towerBalancer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) != 1 || b.shared.Load() {
		return nil
	}
	return b.all[0]
}

// balanced is where calls leave the layers of a client that has our balancer,
// and so know whether it has an endpoint for them.
type balanced struct {
	Service
	at *balancers
}

// Ready asks the balancer. Without one the ClientConn is idle, new or closed,
// and a call would make one. Of several, one may be ready.
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

// Describe is that of any other end.
func (b *balanced) Describe() layer.Node { return layer.Describe(b.Service) }
