package meters

import (
	"context"
	"sync"
)

// room says which destinations have labels of their own: mostKeys at a time, each
// until the series of its last owner are gone. Whom the application connects to may
// be anybody, and each has a dozen series, histograms among them.
type room struct {
	mu     sync.Mutex
	owners map[string]int
}

// has reports whether there is room for key, and keeps it until l ends.
func (r *room) has(l *lease, key string) bool {
	if !r.take(key) {
		return false
	}
	l.add(func() { r.give(key) }) // which is at once if l has ended
	return true
}

func (r *room) take(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[key] == 0 && len(r.owners) >= mostKeys {
		return false
	}
	if r.owners == nil {
		r.owners = map[string]int{}
	}
	r.owners[key]++
	return true
}

func (r *room) give(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[key]--; r.owners[key] == 0 {
		delete(r.owners, key)
	}
}

// parent returns the name that a destination of requests is counted by, which is
// empty if there is no room for it.
func (m *Meters) parent(ctx context.Context, d Direction, target string) string {
	if d == Outbound && !m.parents.has(m.lease(ctx), target) {
		return ""
	}
	return target
}

// peers returns labels without those of one server, or of one address that
// clients connect to, if there is no room for them.
func (m *Meters) peers(l *lease, d Direction, of *room, labels Labels) Labels {
	key := labels["authority"]
	if key == "" {
		key = labels["target_addr"]
	}
	if d != Outbound || key == "" || of.has(l, key) {
		return labels
	}
	few := Labels{}
	for _, name := range []string{"tls", "no_tls_reason"} {
		if value, ok := labels[name]; ok {
			few[name] = value
		}
	}
	return few
}
