package balance

import (
	"math/rand/v2"

	"github.com/gotower/gotower/layer"
)

// maxWalk bounds how many nodes are looked at for a request that was sent
// before. Few requests are sent more than three times, so that it has been to
// all of sixteen only where there are hardly more.
const maxWalk = 16

// chooseElsewhere is choose for a request that was sent before: of k nodes
// where it has not been, the cheapest. They are neighbours from a random place
// on. Where it has been to all that it looks at, it is as good as a new one.
func (r *readySet[Req, Rsp]) chooseElsewhere(t *layer.Tries, k int, now uint32, decay float64) *node[Req, Rsp] {
	s := r.slots.Load()
	n := int(s.n.Load())
	if n == 0 {
		return nil
	}
	var best *node[Req, Rsp]
	from, found := rand.IntN(n), 0
	for i := 0; i < min(n, maxWalk) && found < k; i++ {
		c := s.at[(from+i)%n].Load()
		if c == nil || t.Has(c) {
			continue
		}
		found++
		best = cheaper(best, c, now, decay)
	}
	if best == nil {
		return r.choose(k, now, decay)
	}
	return best
}
