package simulation

import (
	"context"
	"net/netip"
	"slices"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

type (
	response = *request
	option   = balance.Option[response]
	endpoint = discover.Endpoint[*request, response]
	changed  = discover.Change[*request, response]
)

// ours is the real balancer.
type ours struct {
	scenario *scenario
	balancer *balance.Balancer[*request, response]
	changes  chan changed
	cancel   context.CancelFunc
	have     map[int]*endpoint
}

// newOurs returns a balancer in the bubble of its caller.
func newOurs(sc *scenario, v variant, seed uint64) *ours {
	o := &ours{scenario: sc, changes: make(chan changed), have: make(map[int]*endpoint)}
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	news := func(yield func(changed) bool) {
		for c := range o.changes {
			if !yield(c) {
				return
			}
		}
	}
	opts := append(v.options(sc, seed), balance.WithCompletion(complete))
	o.balancer = balance.New(ctx, "simulated", news, opts...)
	return o
}

func (o *ours) set(live []int, _ time.Duration) {
	c := changed{State: resolve.StateExists}
	for _, i := range live {
		if o.have[i] == nil {
			o.have[i] = o.newEndpoint(i)
			c.Added = append(c.Added, o.have[i])
		}
	}
	for i, e := range o.have {
		if !slices.Contains(live, i) {
			delete(o.have, i)
			c.Removed = append(c.Removed, e)
		}
	}
	o.changes <- c
	synctest.Wait()
}

func (o *ours) send(r *request, _ time.Duration) {
	r.to = -1
	if _, err := o.balancer.Call(r.ctx, r); err != nil {
		r.to = -1
	}
}

func (o *ours) stop() {
	o.cancel()
	close(o.changes)
	synctest.Wait()
}

func (o *ours) newEndpoint(i int) *endpoint {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	e := &endpoint{Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}, Service: leaf(i)}
	if o.scenario.zone != nil {
		e.Labels = map[string]string{"zone": o.scenario.zone(i)}
	}
	return e
}

// leaf is the service of one backend: it says where the request went, and
// returns it as a response that has not ended.
type leaf int

func (leaf) Ready(context.Context) error { return nil }

func (l leaf) Call(_ context.Context, r *request) (response, error) {
	r.to = int(l)
	return r, nil
}

// complete leaves the observer where the simulation will tell it.
func complete(_ context.Context, r response, o layer.Observer) response {
	head, end := r.onHead, r.onEnd
	r.onHead = func(now time.Duration) {
		o.Data(1)
		if head != nil {
			head(now)
		}
	}
	r.onEnd = func(now time.Duration, err error) {
		o.End(err)
		if end != nil {
			end(now, err)
		}
	}
	return r
}
