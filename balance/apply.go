package balance

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/backoff"
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
				n.endpoint.Store(e)
			}
		}
		// After what was added, so that a whole new set leaves no gap.
		for _, e := range c.Removed {
			if n := b.nodes[e.ID]; n != nil {
				b.remove(n)
			}
		}
		b.state, b.err = c.State, c.Err
	}
	b.mu.Unlock()
	b.changed.Wake()
}

func (b *Balancer[Req, Rsp]) newNode(e *discover.Endpoint[Req, Rsp]) *node[Req, Rsp] {
	n := &node[Req, Rsp]{id: e.ID, service: e.Service, reason: layer.Poll(e.Service)}
	n.endpoint.Store(e)
	n.latency.init(b.rtt, tick(time.Since(b.start)))
	return n
}

// insert puts a new node where its reason says. An ID that is there already
// keeps its node.
func (b *Balancer[Req, Rsp]) insert(n *node[Req, Rsp]) {
	if old := b.nodes[n.id]; old != nil {
		old.endpoint.Store(n.endpoint.Load())
		return
	}
	b.nodes[n.id] = n
	if n.reason == nil {
		b.ready.add(n)
		return
	}
	b.setAside(n, n.reason)
}

// setAside makes a node that is not in the ready set wait until it is ready, or
// not even that.
func (b *Balancer[Req, Rsp]) setAside(n *node[Req, Rsp], reason error) {
	n.reason, b.refuser = reason, n
	if errors.Is(reason, layer.ErrClosed) {
		n.state.Store(closed)
		return
	}
	n.state.Store(unready)
	var ctx context.Context
	ctx, n.stop = context.WithCancel(b.ctx) //nolint:gosec // await and remove call it
	go b.await(ctx, n)
}

// refusedBy takes out of the ready set a node that refused a request.
func (b *Balancer[Req, Rsp]) refusedBy(n *node[Req, Rsp], reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.state.Load() != ready {
		return // another request was refused before this one
	}
	b.ready.remove(n)
	b.setAside(n, reason)
}

// await waits until n is ready, and puts it back. It ends when n is removed.
func (b *Balancer[Req, Rsp]) await(ctx context.Context, n *node[Req, Rsp]) {
	err := n.service.Ready(ctx)
	for failures := 0; err != nil && !errors.Is(err, layer.ErrClosed); failures++ {
		// Either ctx is done, or Ready broke its contract.
		if backoff.Sleep(ctx, pause.Delay(failures)) != nil {
			return
		}
		err = n.service.Ready(ctx)
	}
	b.putBack(n, err)
}

// putBack ends the wait for n, with what its Ready returned: nil, or that it
// has closed.
func (b *Balancer[Req, Rsp]) putBack(n *node[Req, Rsp], err error) {
	b.mu.Lock()
	if n.state.Load() == unready {
		n.stop()
		if n.reason = err; err == nil {
			n.state.Store(ready)
			b.ready.add(n)
		} else {
			n.state.Store(closed)
			b.refuser = n
		}
	}
	b.mu.Unlock()
	b.changed.Wake()
}

var pause = backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1}

func (b *Balancer[Req, Rsp]) remove(n *node[Req, Rsp]) {
	delete(b.nodes, n.id)
	switch n.state.Swap(removed) {
	case ready:
		b.ready.remove(n)
	case unready:
		n.stop()
	}
	b.departed += n.picks()
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
