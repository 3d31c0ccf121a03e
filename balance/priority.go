package balance

import (
	"cmp"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// groupKey identifies a group of endpoints. The endpoints of a locality without a weight form one
// group per priority, in which [Policy].Zone and the costs decide.
type groupKey struct {
	priority uint32
	locality string // of a locality with a weight
}

// keyOf returns the key of the group to which e belongs.
func keyOf(e *resolve.Endpoint) groupKey {
	key := groupKey{priority: e.Priority}
	if e.LocalityWeight > 0 {
		key.locality = e.Locality
	}
	return key
}

// compare orders keys as the groups are tried.
func (k groupKey) compare(o groupKey) int {
	return cmp.Or(cmp.Compare(k.priority, o.priority), cmp.Compare(k.locality, o.locality))
}

// division divides the requests among a balancer's groups, by the rules of Envoy. It is immutable.
//
// A priority is healthy to the part 1.4 · h/n, at most 1, if h of its n endpoints are ready and not
// doubted. The first priority gets this part of the requests, the next one its own part of the rest,
// and so on. If the sum of all parts is below 1, they are increased in proportion. Within a priority, a
// locality gets its weight times its own healthy part.
type division struct {
	groups []*group // by priority, then by locality
	ends   []uint64 // ends[i] is the end of the share of groups[i], in the range from 0 to 1 << 32
	// the doubted endpoints of groups without a share, which get only probes
	doubted []*endpoint
}

// overprovisioning is the factor by which, as in Envoy, a priority or locality may be short of
// healthy endpoints before requests go elsewhere.
const overprovisioning = 1.4

// level is a group with the number of its healthy endpoints, as an input for the division.
type level struct {
	*group
	healthy, ready int
}

// setGroup moves n to the group to which e, its newest description, belongs, and makes this group if
// needed. n must not be in a ready set, and the caller must hold mu.
func (b *Balancer[Req, Rsp]) setGroup(n *node[Req, Rsp], e *resolve.Endpoint) {
	key := keyOf(e)
	// The first group has priority 0 without a locality, and always exists.
	g := b.group
	if key != g.key {
		// groups is sorted by key.
		i, found := slices.BinarySearchFunc(b.groups, key, func(g *group, k groupKey) int { return g.key.compare(k) })
		if !found {
			g = newGroup(*b.policy.Load(), b.group.random)
			g.key = key
			g.use(b.policy.Load().Picker)
			b.groups = slices.Insert(b.groups, i, g)
		}
		g = b.groups[i]
	}
	old := b.groupAt(n)
	// n leaves the count of its old group.
	if n.counted {
		old.size--
	}
	g.size++
	n.counted = true
	n.group.Store(g)
	// All endpoints of a locality have the same weight. 0 means that it has none.
	g.weights = max(e.LocalityWeight, 1)
}

// groupAt returns the group of n. Before setGroup it returns the first group.
func (b *Balancer[Req, Rsp]) groupAt(n *node[Req, Rsp]) *group {
	return cmp.Or(n.group.Load(), b.group)
}

// groupOf returns the group of e. It is faster than groupAt if there is only one group.
func (b *Balancer[Req, Rsp]) groupOf(e *endpoint) *group {
	if b.division.Load() == nil {
		return b.group
	}
	return cmp.Or(e.group.Load(), b.group)
}

// divide computes anew how requests are divided among the groups, and arranges the endpoints for the
// policy's [Peer]. It must be called whenever the ready sets or doubts have changed. The caller must
// hold mu.
func (b *Balancer[Req, Rsp]) divide() {
	// The order of the first endpoints depends on the Peer.
	if p := b.policy.Load().Peer; p.Count > 0 {
		for _, g := range b.groups {
			if g.moved {
				g.arrange(p)
				g.moved = false
			}
		}
	}
	// Groups without endpoints are forgotten, except the first.
	b.groups = slices.DeleteFunc(b.groups, func(g *group) bool { return g.size == 0 && g != b.group })
	// With one group there is nothing to divide, and pickOne is faster.
	if len(b.groups) == 1 && b.groups[0] == b.group {
		b.division.Store(nil)
		return
	}
	var levels []level
	anyHealthy := false // in any level
	for _, g := range b.groups {
		if g.size == 0 {
			continue
		}
		// An endpoint that is ready but doubted is not healthy.
		l := level{group: g}
		for e := range g.endpoints() {
			l.ready++
			if e.level.Load() == 0 {
				l.healthy++
				anyHealthy = true
			}
		}
		levels = append(levels, l)
	}
	if !anyHealthy { // doubted endpoints are better than none
		for i := range levels {
			levels[i].healthy = levels[i].ready
		}
	}
	t := &division{}
	end := 0.0
	// sharesOf returns parts of 1; ends are their cumulative sums as fractions of 1 << 32.
	for i, share := range sharesOf(levels) {
		t.groups = append(t.groups, levels[i].group)
		end += share
		t.ends = append(t.ends, uint64(end*(1<<32)))
		// A group without a share gets no requests, so nothing would show that its doubted endpoints have recovered.
		if share == 0 {
			for e := range levels[i].endpoints() {
				if e.level.Load() > 0 {
					t.doubted = append(t.doubted, e)
				}
			}
		}
	}
	b.division.Store(t)
}

// sharesOf returns the share of the requests that each level gets, by the rules in [division]. levels
// must be in the order of their priorities.
func sharesOf(levels []level) []float64 {
	parts := make([]float64, len(levels)) // the part of its priority that a level gets
	type priority struct {
		first, end int // the levels
		health     float64
	}
	var priorities []priority
	sum := 0.0
	// First, the parts within each priority, and the health of each priority as a whole.
	for first := 0; first < len(levels); {
		end := first
		healthy := 0
		size := 0
		weight := 0.0
		// All levels of the same priority, which are its localities.
		for ; end < len(levels) && levels[end].key.priority == levels[first].key.priority; end++ {
			l := levels[end]
			healthy += l.healthy
			size += l.size
			parts[end] = float64(max(l.weights, 1)) * healthOf(l.healthy, l.size)
			weight += parts[end]
		}
		for i := first; i < end && weight > 0; i++ {
			parts[i] /= weight
		}
		health := healthOf(healthy, size)
		sum += health
		priorities = append(priorities, priority{first, end, health})
		first = end
	}
	// Then the shares of the priorities: each gets its health's part of what the ones before it have
	// left.
	rest := 1.0
	for _, p := range priorities {
		share := 0.0
		if sum > 0 {
			// If all priorities together are not fully healthy (sum < 1), each gets proportionally more.
			share = min(p.health/min(sum, 1), rest)
		}
		rest -= share
		for i := p.first; i < p.end; i++ {
			parts[i] *= share
		}
	}
	return parts
}

// healthOf returns the healthy part of a group: 1 if at least 71 % of its endpoints are healthy.
func healthOf(healthy, size int) float64 {
	if size == 0 {
		return 0
	}
	return min(1, overprovisioning*float64(healthy)/float64(size))
}

// pickOne picks an endpoint, from one of the groups if there are several. It returns nil if it finds
// none.
func (b *Balancer[Req, Rsp]) pickOne(q query) *endpoint {
	if t := b.division.Load(); t != nil {
		return t.pick(q)
	}
	return (*b.group.picker.Load()).pick(q)
}

// pick chooses a group at random, in proportion to the shares, or by the key of a request with
// affinity, and lets it pick an endpoint. If the group is empty, or the request has tried this
// endpoint, it asks the other groups in order. Now and then it returns a doubted endpoint of a group
// that gets no requests, as a probe.
func (t *division) pick(q query) *endpoint {
	// One random number chooses the group, and a doubted endpoint.
	random := t.groups[0].draw()
	if len(t.doubted) > 0 && q.mayProbe() {
		e := t.doubted[int(random%uint64(len(t.doubted)))]
		if waiting, _ := e.load(); e.status.state() == ready && e.level.Load() > 0 &&
			e.isDue(q.now, uint32(len(t.doubted)), waiting) && e.claimProbe(q.now) {
			return e
		}
	}
	// The same key must always choose the same group.
	if q.hasAffinity {
		random = mix(q.affinity)
	}
	// ends is sorted; the upper 32 bits of random are compared with it.
	first := slices.IndexFunc(t.ends, func(end uint64) bool { return random>>32 < end })
	var best *endpoint
	if first >= 0 {
		if best = (*t.groups[first].picker.Load()).pick(q); best != nil && !q.attempts.Has(best) {
			return best
		}
	}
	// Only an endpoint that the request has not tried replaces one that it has tried.
	for i, g := range t.groups {
		if i == first || g.len() == 0 {
			continue
		}
		e := (*g.picker.Load()).pick(q)
		if best == nil || e != nil && !q.attempts.Has(e) {
			best = e
		}
		if best != nil && !q.attempts.Has(best) {
			return best
		}
	}
	return best
}

// describe returns the attribute "groups" for Describe: the share of each group in percent.
func (t *division) describe() layer.State {
	if t == nil {
		return nil
	}
	var texts []string
	start := uint64(0)
	for i, g := range t.groups {
		text := "priority " + strconv.FormatUint(uint64(g.key.priority), 10)
		if g.key.locality != "" {
			text += " " + g.key.locality
		}
		// In tenths of a percent, rounded down.
		texts = append(texts, text+" "+strconv.FormatFloat(float64((t.ends[i]-start)*1000>>32)/10, 'g', 4, 64)+" %")
		start = t.ends[i]
	}
	return layer.State{{Key: "groups", Value: texts}}
}

// readyLen returns the number of ready endpoints in all groups.
func (b *Balancer[Req, Rsp]) readyLen() int {
	t := b.division.Load()
	// There is one group only, without priorities.
	if t == nil {
		return b.group.len()
	}
	n := 0
	for _, g := range t.groups {
		n += g.len()
	}
	return n
}

// pickerValue holds a picker, because an interface has no atomic type.
type pickerValue = atomic.Pointer[picker]
