package balance

import (
	"errors"
	"net/netip"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// apply applies a change. When it returns, removed endpoints get no new requests.
func (b *Balancer[Req, Rsp]) apply(c discover.Change[Req, Rsp]) {
	if errors.Is(c.Err, resolve.ErrUnresolvable) {
		b.end("", c.Err)
		return
	}
	added := make([]*node[Req, Rsp], len(c.Added))
	for i, e := range c.Added {
		added[i] = b.newNode(e) // calls user code, which must not run with mu held
	}
	b.mu.Lock()
	if b.ended.Load() == nil {
		for _, n := range added {
			b.insert(n)
		}
		for _, e := range c.Changed {
			if n := b.nodes[e.ID]; n != nil {
				b.update(n, &e.Endpoint)
			}
		}
		for _, e := range c.Removed { // last, so that the set is not empty in between
			if n := b.nodes[e.ID]; n != nil {
				b.remove(n)
			}
		}
		b.state, b.err = c.State, c.Err
		b.meters.updated(c.Reset, len(c.Added), len(c.Changed), len(c.Removed)-replaced(c))
		b.readmitAll()
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// replaced returns the number of removed endpoints whose address c adds with another ID.
func replaced[Req, Rsp any](c discover.Change[Req, Rsp]) (n int) {
	if len(c.Added) == 0 || len(c.Removed) == 0 {
		return 0
	}
	added := make(map[netip.AddrPort]bool, len(c.Added))
	for _, e := range c.Added {
		added[e.ID.Addr] = true
	}
	for _, e := range c.Removed {
		if added[e.ID.Addr] {
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
	n.beginSlowStart(tick(n.born))
	if !b.group.median.known() {
		n.status.setSamples(initialSet)
	}
	return n
}

// insert adds a node. The node is ready if its reason is nil. An existing ID keeps its node.
func (b *Balancer[Req, Rsp]) insert(n *node[Req, Rsp]) {
	if old := b.nodes[n.id]; old != nil {
		b.update(old, n.info)
		return
	}
	b.nodes[n.id] = n
	n.status.setState(unready)
	b.update(n, n.info)
	if n.reason == nil {
		b.join(n)
		return
	}
	b.markUnready(n, n.reason)
}

// update sets the labels and the weight of a node. A ready node leaves its ready set and
// joins again if its zone or weight changes.
func (b *Balancer[Req, Rsp]) update(n *node[Req, Rsp], e *resolve.Endpoint) {
	n.info = e
	isFar := b.zone != "" && e.Labels["zone"] != b.zone
	moves := n.status.state() == ready && (isFar != n.far || n.weighs(e.Weight))
	if moves {
		b.leave(n)
	}
	n.far = isFar
	b.setWeighted(n, n.setWeight(e.Weight))
	if moves {
		b.join(n)
	}
}

// setWeighted records whether the weight of n differs from 1. n must not be in a ready set.
func (b *Balancer[Req, Rsp]) setWeighted(n *node[Req, Rsp], weighted bool) {
	if n.weighted == weighted {
		return
	}
	if n.weighted = weighted; weighted {
		b.weighted++
	} else {
		b.weighted--
	}
	b.group.weighted.Store(b.weighted > 0 || b.group.slowStart > 0)
}

// join adds a node to the ready set of its zone.
func (b *Balancer[Req, Rsp]) join(n *node[Req, Rsp]) {
	n.status.setState(ready)
	b.group.set(&n.endpoint).add(&n.endpoint, b.group.draw)
	b.picker.joined(&n.endpoint)
	b.count()
}

// leave removes a node from its ready set. The caller changes the state afterwards.
func (b *Balancer[Req, Rsp]) leave(n *node[Req, Rsp]) {
	b.group.set(&n.endpoint).remove(&n.endpoint)
	b.picker.left(&n.endpoint)
}

func (b *Balancer[Req, Rsp]) count() {
	ready := b.group.len()
	b.meters.ready.Set(float64(ready))
	b.meters.pending.Set(float64(len(b.nodes) - ready))
}

// rejectedBy removes a node from the ready set because it rejected a request.
func (b *Balancer[Req, Rsp]) rejectedBy(n *node[Req, Rsp], reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() == ready {
		b.takeOut(n, reason)
	}
}

// staysAfter reports whether n stays ready after it rejected a request for reason. It does if a
// circuit breaker rejected the request and fewer nodes than MinReady would be left. Otherwise
// staysAfter removes n from the ready set. MinReady does not apply to a single node.
func (b *Balancer[Req, Rsp]) staysAfter(n *node[Req, Rsp], reason error) bool {
	e, ok := errors.AsType[*layer.Error](reason)
	byBreaker := ok && e.Layer == "breaker"
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() != ready {
		return false
	}
	if total := len(b.nodes); byBreaker && total > 1 && b.group.len() <= b.detection.minReady(total) {
		return true
	}
	b.takeOut(n, reason)
	return false
}

// takeOut removes a ready node from the ready set. The caller must hold mu.
func (b *Balancer[Req, Rsp]) takeOut(n *node[Req, Rsp], reason error) {
	b.leave(n)
	b.markUnready(n, reason)
	b.readmitAll()
}

func (b *Balancer[Req, Rsp]) remove(n *node[Req, Rsp]) {
	delete(b.nodes, n.id)
	switch n.status.setState(removed) {
	case ready:
		b.leave(n)
	case unready:
		n.endTurn()
	case ejected:
		b.clearEjection(n)
	}
	b.setWeighted(n, false)
	b.count()
	if b.lastUnready == n {
		b.lastUnready = nil
	}
}

// end removes all nodes. After that every request is rejected.
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
