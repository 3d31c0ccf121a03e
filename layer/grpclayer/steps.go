package grpclayer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// step is a change that the balancer is yet to make, and what follows from it.
type step struct {
	change  change
	closing []*conn // what the change removes
}

// push tells the balancer of a step, without waiting for it: gRPC must not.
func (t *towerBalancer) push(s step) {
	current := slices.Collect(maps.Values(t.members))
	t.current.Store(&current)
	t.mu.Lock()
	t.queue = append(t.queue, s)
	t.mu.Unlock()
	select {
	case t.queued <- struct{}{}:
	default:
	}
}

// changes is what the balancer ranges over. Once it has made a change, what
// was removed gets nothing more and may finish; and those who wait may look
// again.
func (t *towerBalancer) changes(yield func(change) bool) {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.queued:
		}
		t.mu.Lock()
		steps := t.queue
		t.queue = nil
		t.mu.Unlock()
		for _, s := range steps {
			if !yield(s.change) {
				return
			}
			for _, c := range s.closing {
				c.close()
			}
			t.publish()
		}
	}
}

func errStrange(addresses []string) error {
	return fmt.Errorf("grpclayer: %s: not an IP address and a port; use a resolver that finds those", strings.Join(addresses, ", "))
}
