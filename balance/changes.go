package balance

import (
	"errors"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// apply adds, updates and removes the endpoints of a change. When it returns, removed
// endpoints get no new requests. If c.Err matches [resolve.ErrUnresolvable], apply ends the
// balancer, which then rejects all requests.
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
		b.meters.updated(c.Reset, len(c.Added), len(c.Changed), len(c.Removed))
		b.readmitAll()
	}
	b.mu.Unlock()
	b.changed.Wake()
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
	if !b.group.median.measured.Load() {
		n.status.setSamples(initialSet)
	}
	return n
}

// insert adds n to the balancer. If n.reason is nil, n becomes ready. Otherwise n becomes
// unready, or closed if n.reason matches layer.ErrClosed. If the balancer already has a node
// with the same ID, insert updates that node instead. The caller must hold mu.
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

// update sets the labels, the zone and the weight of n from e. A ready node with a new zone or
// weight leaves its ready set, and joins the ready set of its zone. The caller must hold mu.
func (b *Balancer[Req, Rsp]) update(n *node[Req, Rsp], e *resolve.Endpoint) {
	n.info = e
	isFar := b.zone != "" && e.Labels["zone"] != b.zone
	moves := n.status.state() == ready && (isFar != n.far || n.weightDiffers(e.Weight))
	if moves {
		b.leave(n)
	}
	n.far = isFar
	if n.setWeight(e.Weight) {
		b.group.weighted.Store(true)
	}
	if moves {
		b.join(n)
	}
}

// join makes n ready and adds it to the ready set of its zone. The caller must hold mu.
func (b *Balancer[Req, Rsp]) join(n *node[Req, Rsp]) {
	n.status.setState(ready)
	b.group.set(&n.endpoint).add(&n.endpoint, b.group.draw)
	b.picker.joined(&n.endpoint)
	b.count()
}

// leave removes n from its ready set. The caller must hold mu, and must set the new state
// of n afterwards.
func (b *Balancer[Req, Rsp]) leave(n *node[Req, Rsp]) {
	b.group.set(&n.endpoint).remove(&n.endpoint)
	b.picker.left(&n.endpoint)
}

func (b *Balancer[Req, Rsp]) count() {
	ready := b.group.len()
	b.meters.ready.Set(float64(ready))
	b.meters.pending.Set(float64(len(b.nodes) - ready))
}

// rejectedBy removes a ready node n from its ready set, because n rejected a request with the error
// reason. If byBreaker is true, n stays ready if it is not the only node and the balancer ignores
// circuit breakers. It ignores breakers also if isLast is true: at the last pick of a request.
func (b *Balancer[Req, Rsp]) rejectedBy(n *node[Req, Rsp], reason error, byBreaker, isLast bool) (stays bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() != ready {
		return false
	}
	stays = byBreaker && len(b.nodes) > 1 && (isLast || b.ignoresBreakers())
	if !stays {
		b.takeOut(n, reason)
	}
	return stays
}

func isByBreaker(reason error) bool {
	e, ok := errors.AsType[*layer.Error](reason)
	return ok && e.Layer == "breaker"
}

// ignoresBreakers reports whether the balancer ignores circuit breakers. If MinReady does not
// allow fewer ready nodes, the balancer ignores them for a second, and all nodes that breakers
// have made unready become ready. The caller must hold mu.
func (b *Balancer[Req, Rsp]) ignoresBreakers() bool {
	now := time.Since(b.start)
	if now < b.panicEnd || !b.isAtMinReady() {
		return now < b.panicEnd
	}
	b.panicEnd = now + time.Second
	nodes, _ := b.states() // in a fixed order
	for _, n := range nodes {
		if n.status.state() == unready && isByBreaker(n.reason) {
			n.endTurn()
			b.endWait(n, nil)
		}
	}
	return true
}

// isAtMinReady reports whether no available node may be ejected, because MinReady nodes or fewer are
// available. The caller must hold mu.
func (b *Balancer[Req, Rsp]) isAtMinReady() bool {
	return !b.hasAvailable(b.detection.minReady(len(b.nodes)) + 1)
}

// hasAvailable reports whether at least n nodes are available, for n > 0. The caller must hold mu.
func (b *Balancer[Req, Rsp]) hasAvailable(n int) bool {
	if b.group.len() >= n {
		return true
	}
	for _, o := range b.nodes {
		if o.isAvailable() {
			if n--; n == 0 {
				return true
			}
		}
	}
	return false
}

// isAvailable reports whether n is ready or busy. It is busy if it has requests in flight and has
// rejected another one, but not by a breaker. Otherwise an overload would send requests to failing
// nodes. The caller must hold the balancer's mutex.
func (n *node[Req, Rsp]) isAvailable() bool {
	switch n.status.state() {
	case ready:
		return true
	case unready:
		return n.inFlight() > 0 && !isByBreaker(n.reason)
	}
	return false
}

// takeOut makes the ready node n unready, or closed if reason matches layer.ErrClosed. If no
// node is available then, takeOut ends all ejections. The caller must hold mu.
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
	b.count()
	if b.lastUnready == n {
		b.lastUnready = nil
	}
}

// end removes all nodes. After that every request is rejected with an error of kind
// layer.ErrClosed. The arguments are the Reason and the cause of that error. Only the first
// call has an effect.
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
