package balance

import (
	"cmp"
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
	// The target can never be resolved.
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
		b.divide()
		b.noteTarget()
	}
	b.mu.Unlock()
	b.resolved.Store(true)
	b.changed.Wake()
}

// newNode returns a node for e, which insert then adds to the balancer. Its reason is the result of a
// first poll: nil means that the endpoint is ready, and an error why it is not. The poll calls e's
// service, so the caller must not hold mu.
func (b *Balancer[Req, Rsp]) newNode(e *discover.Endpoint[Req, Rsp]) *node[Req, Rsp] {
	n := &node[Req, Rsp]{service: e.Service}
	n.record = &record{id: e.ID, info: &e.Endpoint, born: time.Since(b.start)}
	n.reason = panics.Do("the endpoint's service", func() error {
		b.failures.use(layer.ClassifierOf(e.Service))
		return layer.Poll(e.Service)
	})
	n.node = n
	n.beginSlowStart(tick(n.born))
	return n
}

// insert adds n to the balancer: as ready if n.reason is nil, as closed if n.reason matches
// layer.ErrClosed, and otherwise as unready. If there is a node with the same ID already, only that one
// is updated. The caller must hold mu.
func (b *Balancer[Req, Rsp]) insert(n *node[Req, Rsp]) {
	if old := b.nodes[n.id]; old != nil {
		b.update(old, n.info)
		return
	}
	b.nodes[n.id] = n
	n.status.setState(unready)
	b.update(n, n.info)
	// Nothing is known about any endpoint, so there is no reason to probe this one carefully.
	if !b.groupAt(n).median.measured.Load() {
		n.status.setSamples(initialSet)
	}
	if n.reason == nil {
		b.join(n)
		return
	}
	b.markUnready(n, n.reason)
}

// update applies what the resolver tells about n: labels, priority, zone and weight. If n is ready, and
// the change affects where it belongs, it leaves its ready set and joins another one. The caller must
// hold mu.
func (b *Balancer[Req, Rsp]) update(n *node[Req, Rsp], e *resolve.Endpoint) {
	n.info = e
	zone := b.policy.Load().Zone
	// An endpoint's own locality is more exact than the label.
	isFar := zone != "" && cmp.Or(e.Locality, e.Labels["zone"]) != zone
	// A ready node whose place changes leaves its set with the old values and joins with the new ones.
	moves := n.status.state() == ready && (isFar != n.far || n.weightDiffers(e.Weight) || keyOf(e) != b.groupAt(n).key)
	if moves {
		b.leave(n)
	}
	n.far = isFar
	b.setGroup(n, e)
	if n.setWeight(e.Weight) {
		b.groupAt(n).weighted.Store(true)
	}
	if moves {
		b.join(n)
	}
}

// join makes n ready: it adds n to the ready set of its group and zone. The caller must hold mu.
func (b *Balancer[Req, Rsp]) join(n *node[Req, Rsp]) {
	n.status.setState(ready)
	g := b.groupAt(n)
	g.moved = true
	g.set(&n.endpoint).add(&n.endpoint, g.draw)
	(*g.picker.Load()).joined(&n.endpoint)
	b.count()
	b.noteUp(n)
}

// leave removes n from its ready set. The caller must hold mu, and must set the new state
// of n afterwards.
func (b *Balancer[Req, Rsp]) leave(n *node[Req, Rsp]) {
	g := b.groupAt(n)
	g.moved = true
	g.set(&n.endpoint).remove(&n.endpoint)
	(*g.picker.Load()).left(&n.endpoint)
}

// count updates the metrics and b.pending after a change of the ready sets.
func (b *Balancer[Req, Rsp]) count() {
	ready := 0
	for _, g := range b.groups {
		ready += g.len()
	}
	b.meters.ready.Set(float64(ready))
	b.pending.Store(int64(len(b.nodes) - ready))
	b.meters.pending.Set(float64(len(b.nodes) - ready))
}

// rejectedBy is called when the ready node n has rejected a request for the given reason, and reports
// whether n stays ready. Usually it does not: n leaves its ready set until its Ready returns nil. But
// if byBreaker is true, that is, if n's circuit breaker has rejected the request, n stays while the
// balancer ignores breakers, and at a request's last pick (isLast), because with too few endpoints
// left, failing ones are better than none.
func (b *Balancer[Req, Rsp]) rejectedBy(n *node[Req, Rsp], reason error, byBreaker, isLast bool) (stays bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.status.state() != ready {
		return false
	}
	// With a single endpoint, its breaker decides; there is no better one.
	stays = byBreaker && len(b.nodes) > 1 && (isLast || b.ignoresBreakers())
	if !stays {
		b.takeOut(n, reason)
	}
	return stays
}

// isByBreaker reports whether reason is the rejection of a [layer.Breaker].
func isByBreaker(reason error) bool {
	e, ok := errors.AsType[*layer.Error](reason)
	return ok && e.Layer == "breaker"
}

// ignoresBreakers reports whether the balancer ignores circuit breakers now. It begins to do so, for a
// second, when no more nodes may become unready: see OutlierDetection.MinReady. The caller must hold
// mu.
func (b *Balancer[Req, Rsp]) ignoresBreakers() bool {
	now := time.Since(b.start)
	if now < b.panicEnd || !b.isAtMinReady() {
		// Breakers are ignored until panicEnd.
		return now < b.panicEnd
	}
	b.ignoreBreakers()
	return true
}

// ignoreBreakers makes the balancer ignore circuit breakers for a second. All nodes that are unready
// because of a breaker become ready. The caller must hold mu.
func (b *Balancer[Req, Rsp]) ignoreBreakers() {
	b.panicEnd = time.Since(b.start) + time.Second
	nodes, _ := b.states() // in a fixed order
	for _, n := range nodes {
		if n.status.state() == unready && isByBreaker(n.reason) {
			// It does not wait for its Ready, because only the breaker kept it away.
			n.endTurn()
			b.endWait(n, nil)
		}
	}
}

// relieve handles an overload that ejections and breakers have made worse: if the remaining endpoints
// of g fail as well, they cannot serve the requests of the others. relieve then ends all ejections, and
// ignores circuit breakers for a second. It is called after each failure and each missed deadline, and
// usually does nothing.
func (b *Balancer[Req, Rsp]) relieve(g *group, now uint32) {
	last := b.relieved.Load()
	// At most once per relievePause, and by one goroutine.
	if b.pending.Load() == 0 || !g.peers.strained() || since(now, last) < relievePause || !b.relieved.CompareAndSwap(last, now) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ignoreBreakers()
	// For a while, no endpoint is ejected again.
	if b.ejected > 0 {
		b.strainEnd = time.Since(b.start) + b.policy.Load().OutlierDetection.BaseEjectionTime
	}
	b.endEjections()
}

// relievePause is the minimum number of ticks (about 0.1 s in total) between two calls of relieve that
// have an effect. Without it, each of many failures would take the balancer's mutex.
const relievePause = 96

// isAtMinReady reports whether no other node may become unavailable, because MinReady does not allow
// fewer than there are. The caller must hold mu.
func (b *Balancer[Req, Rsp]) isAtMinReady() bool {
	return !b.hasAvailable(b.policy.Load().OutlierDetection.minReady(len(b.nodes)) + 1)
}

// hasAvailable reports whether at least n nodes are available, for n > 0. The caller must hold mu.
func (b *Balancer[Req, Rsp]) hasAvailable(n int) bool {
	// Usually the ready nodes are sufficient. The groups know how many there are, so that no node must be
	// visited.
	ready := 0
	for _, g := range b.groups {
		ready += g.len()
	}
	if ready >= n {
		return true
	}
	// Busy nodes count as well.
	for _, o := range b.nodes {
		if o.isAvailable() {
			if n--; n == 0 {
				return true
			}
		}
	}
	return false
}

// isAvailable reports whether n can serve requests: it is ready, or busy. A busy node has rejected a
// request, but still serves others. After a rejection by a breaker, a node is not busy but failing. The
// caller must hold the balancer's mutex.
func (n *node[Req, Rsp]) isAvailable() bool {
	switch n.status.state() {
	case ready:
		return true
	case unready:
		return n.inFlight() > 0 && !isByBreaker(n.reason)
	}
	return false
}

// takeOut makes the ready node n unready, or closed if reason matches layer.ErrClosed. If that leaves
// no available node, all ejections end. The caller must hold mu.
func (b *Balancer[Req, Rsp]) takeOut(n *node[Req, Rsp], reason error) {
	b.leave(n)
	b.markUnready(n, reason)
	b.readmitAll()
	b.divide()
	b.noteTarget()
}

// remove forgets n, because the resolver has removed it or the balancer ends. The caller must hold mu.
func (b *Balancer[Req, Rsp]) remove(n *node[Req, Rsp]) {
	delete(b.nodes, n.id)
	if n.isDown {
		b.down--
	}
	// What must be undone depends on the state that n had.
	switch n.status.setState(removed) {
	case ready:
		b.leave(n)
	case unready:
		n.endTurn()
	case ejected:
		b.clearEjection(n)
	}
	b.groupAt(n).size--
	n.counted = false
	b.count()
	// lastUnready must not keep a removed node.
	if b.lastUnready == n {
		b.lastUnready = nil
	}
}

// end removes all nodes. After that every request is rejected with an error of kind
// layer.ErrClosed, with the given reason and cause. Only the first call counts.
func (b *Balancer[Req, Rsp]) end(reason string, cause error) {
	err := &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrClosed, Reason: reason, Err: cause}
	b.mu.Lock()
	// Only the first reason counts.
	if b.ended.CompareAndSwap(nil, err) {
		for _, n := range b.nodes {
			b.remove(n)
		}
	}
	b.mu.Unlock()
	b.changed.Wake()
}
