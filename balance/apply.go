package balance

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// apply brings the nodes up to date. What was removed gets nothing from a Call
// that begins after it returned.
func (b *Balancer[Req, Rsp]) apply(c discover.Change[Req, Rsp]) {
	if errors.Is(c.Err, resolve.ErrUnresolvable) {
		b.end("", c.Err)
		return
	}
	added := make([]*node[Req, Rsp], len(c.Added))
	for i, e := range c.Added {
		added[i] = b.newNode(e) // asks whether it is ready, so not under the lock
	}
	b.mu.Lock()
	if b.ended.Load() == nil {
		for _, n := range added {
			b.insert(n)
		}
		for _, e := range c.Changed {
			if n := b.nodes[e.ID]; n != nil {
				b.know(n, &e.Endpoint)
			}
		}
		// After what was added, so that a whole new set leaves no gap.
		for _, e := range c.Removed {
			if n := b.nodes[e.ID]; n != nil {
				b.remove(n)
			}
		}
		b.state, b.err = c.State, c.Err
		b.meters.updated(c.Reset, len(c.Added), len(c.Changed), len(c.Removed)-replaced(c))
		b.recall()
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// replaced is how many of the endpoints that c removes it adds with another ID.
func replaced[Req, Rsp any](c discover.Change[Req, Rsp]) (n int) {
	if len(c.Added) == 0 || len(c.Removed) == 0 {
		return 0
	}
	added := make(map[netip.AddrPort]struct{}, len(c.Added))
	for _, e := range c.Added {
		added[e.ID.Addr] = struct{}{}
	}
	for _, e := range c.Removed {
		if _, again := added[e.ID.Addr]; again {
			n++
		}
	}
	return n
}

func (b *Balancer[Req, Rsp]) newNode(e *discover.Endpoint[Req, Rsp]) *node[Req, Rsp] {
	n := &node[Req, Rsp]{service: e.Service}
	n.record = &record{id: e.ID, info: &e.Endpoint, born: time.Since(b.start)}
	n.reason = panics.Do("the endpoint's service", func() error {
		b.failures.use(layer.ClassifierOf(e.Service))
		return layer.Poll(e.Service)
	})
	n.node = n
	n.restart(tick(n.born))
	if !b.group.usual.known() {
		n.status.setProven(founder)
	}
	return n
}

// insert puts a new node where its reason says. An ID that is there already
// keeps its node.
func (b *Balancer[Req, Rsp]) insert(n *node[Req, Rsp]) {
	if old := b.nodes[n.id]; old != nil {
		b.know(old, n.info)
		return
	}
	b.nodes[n.id] = n
	n.status.setState(unready)
	b.know(n, n.info)
	if n.reason == nil {
		b.join(n)
		return
	}
	b.setAside(n, n.reason)
}

// know takes what a resolver says of an endpoint that changes nothing about
// how to reach it. Who has a place in a set for its weight or its zone gets
// another one.
func (b *Balancer[Req, Rsp]) know(n *node[Req, Rsp], e *resolve.Endpoint) {
	n.info = e
	isFar := b.zone != "" && e.Labels["zone"] != b.zone
	moves := n.status.state() == ready && (isFar != n.far || n.weighs(e.Weight))
	if moves {
		b.leave(n)
	}
	n.far = isFar
	b.setSpecial(n, n.setWeight(e.Weight))
	if moves {
		b.join(n)
	}
}

// setSpecial says whether n weighs another than most endpoints, before it is told
// to those who choose and after it has left them.
func (b *Balancer[Req, Rsp]) setSpecial(n *node[Req, Rsp], special bool) {
	if n.special == special {
		return
	}
	if n.special = special; special {
		b.special++
	} else {
		b.special--
	}
	b.group.weighted.Store(b.special > 0 || b.group.slowStart > 0)
}

// join puts a node into its ready set.
func (b *Balancer[Req, Rsp]) join(n *node[Req, Rsp]) {
	n.status.setState(ready)
	b.group.set(&n.endpoint).add(&n.endpoint)
	b.picker.joined(&n.endpoint)
	b.count()
}

// leave takes a node out of it, before its state says so.
func (b *Balancer[Req, Rsp]) leave(n *node[Req, Rsp]) {
	b.group.set(&n.endpoint).remove(&n.endpoint)
	b.picker.left(&n.endpoint)
}

func (b *Balancer[Req, Rsp]) count() {
	ready := b.group.len()
	b.meters.ready.Set(float64(ready))
	b.meters.pending.Set(float64(len(b.nodes) - ready))
}

// recount is called when a request was taken back from n. If n has left, that
// request may have been added to those of the departed, or come after that.
func (b *Balancer[Req, Rsp]) recount(n *node[Req, Rsp]) {
	if n.status.state() != removed {
		return // it will be added up later, without that request
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addUp(n)
}

// addUp makes the picks of n, which has left, those of the departed.
func (b *Balancer[Req, Rsp]) addUp(n *node[Req, Rsp]) {
	picks := n.picks()
	b.departed += picks - n.left
	n.left = picks
}

// refusedBy takes a node that rejected a request out of the ready set.
func (b *Balancer[Req, Rsp]) refusedBy(n *node[Req, Rsp], reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() == ready { // else another request was rejected before this one
		b.takeOut(n, reason)
	}
}

// staysAfter is refusedBy, except that the node stays in the ready set, and the
// result is true, if a breaker rejected the request and fewer nodes than the floor
// would be left. A single node has no floor.
func (b *Balancer[Req, Rsp]) staysAfter(n *node[Req, Rsp], reason error) bool {
	e, ok := errors.AsType[*layer.Error](reason)
	byBreaker := ok && e.Layer == "breaker"
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() != ready {
		return false
	}
	if total := len(b.nodes); byBreaker && total > 1 && b.group.len() <= b.ejection.floor(total) {
		return true
	}
	b.takeOut(n, reason)
	return false
}

// takeOut takes a node out of the ready set, under the lock.
func (b *Balancer[Req, Rsp]) takeOut(n *node[Req, Rsp], reason error) {
	b.leave(n)
	b.setAside(n, reason)
	b.recall()
}

// ready waits in the Ready of the service. A panic there means not ready.
func (n *node[Req, Rsp]) ready(ctx context.Context) error {
	return panics.Do("Ready", func() error { return n.service.Ready(ctx) })
}

// poll asks whether the service is ready now.
func (n *node[Req, Rsp]) poll() error {
	return panics.Do("Ready", func() error { return layer.Poll(n.service) })
}

func (b *Balancer[Req, Rsp]) remove(n *node[Req, Rsp]) {
	delete(b.nodes, n.id)
	switch n.status.setState(removed) {
	case ready:
		b.leave(n)
	case unready:
		n.endTurn()
	}
	b.setSpecial(n, false)
	b.addUp(n)
	b.count()
	if b.refuser == n {
		b.refuser = nil
	}
}

// end refuses everything from now on.
func (b *Balancer[Req, Rsp]) end(reason string, cause error) {
	err := &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrClosed, Reason: reason, Err: cause}
	b.mu.Lock()
	if b.ended.CompareAndSwap(nil, err) {
		for _, n := range b.nodes {
			b.remove(n)
		}
	}
	b.mu.Unlock()
	b.changed.Wake()
}
