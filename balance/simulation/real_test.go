package simulation

import (
	"context"
	"errors"
	"maps"
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
	endpoint = discover.Endpoint[*request, response]
	changed  = discover.Change[*request, response]
)

// realBalancer is the balancer of this package.
type realBalancer struct {
	scenario *scenario
	balancer *balance.Balancer[*request, response]
	changes  chan changed
	cancel   context.CancelFunc
	have     map[int]*endpoint
}

// newReal returns a balancer in the bubble of its caller.
func newReal(sc *scenario, p balance.Policy, seed uint64) policy {
	o := &realBalancer{scenario: sc, changes: make(chan changed), have: make(map[int]*endpoint)}
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	news := func(yield func(changed) bool) {
		for c := range o.changes {
			if !yield(c) {
				return
			}
		}
	}
	if sc.zone != nil {
		p.Zone = near
	}
	o.balancer = balance.New(ctx, balance.Config{Target: "simulated", Rand: source(seed).Uint64, Policy: p}, news,
		balance.WithClassifier(classify), balance.WithCompletion(complete))
	return o
}

func (o *realBalancer) set(live []int, _ time.Duration) {
	c := changed{State: resolve.StateExists}
	for _, i := range live {
		if o.have[i] == nil {
			o.have[i] = o.newEndpoint(i)
			c.Added = append(c.Added, o.have[i])
		}
	}
	keep := make(map[int]bool, len(live))
	for _, i := range live {
		keep[i] = true
	}
	for _, i := range slices.Sorted(maps.Keys(o.have)) {
		if e := o.have[i]; !keep[i] {
			delete(o.have, i)
			c.Removed = append(c.Removed, e)
		}
	}
	o.changes <- c
	synctest.Wait()
}

func (o *realBalancer) send(r *request, _ time.Duration) {
	r.to = -1
	if _, err := o.balancer.Call(&r.ctx, r); err != nil {
		r.to = -1
	}
}

func (o *realBalancer) stop() {
	o.cancel()
	close(o.changes)
	synctest.Wait()
}

func (o *realBalancer) newEndpoint(i int) *endpoint {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	e := &endpoint{Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: addr}}, Service: o.scenario.service(i)}
	if o.scenario.weight != nil {
		e.Weight = o.scenario.weight(i)
	}
	if o.scenario.zone != nil {
		e.Labels = map[string]string{"zone": o.scenario.zone(i)}
	}
	return e
}

// classify returns the class of an error as the classifiers of HTTP and gRPC do.
func classify(o layer.Outcome[response]) layer.Class {
	if errors.Is(o.Err, errBackend) {
		return layer.Retryable
	}
	return layer.DefaultClassifier(o)
}

// leaf is the service of one backend. It records the backend in the request, and returns the
// request as a response that has not ended.
type leaf int

func (leaf) Ready(context.Context) error { return nil }

func (l leaf) Call(_ context.Context, r *request) (response, error) {
	r.to = int(l)
	return r, nil
}

// complete registers the observer in the request.
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
