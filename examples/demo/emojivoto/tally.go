package emojivoto

import (
	"cmp"
	"slices"
	"sync"
)

// Tally counts the votes for each emoji. The replicas of a voting service share one Tally,
// as they would share a database. It is safe for concurrent use.
type Tally struct {
	mu    sync.Mutex
	votes map[string]uint64
}

// Result is an emoji and the number of its votes.
type Result struct {
	Shortcode string
	Votes     uint64
}

// NewTally returns a Tally without votes.
func NewTally() *Tally { return &Tally{votes: make(map[string]uint64)} }

// Vote counts one vote for the emoji with the given shortcode.
func (t *Tally) Vote(shortcode string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.votes[shortcode]++
}

// Results returns the emoji with votes, the one with the most votes first. Emoji with equal votes
// are ordered by shortcode.
func (t *Tally) Results() []Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	results := make([]Result, 0, len(t.votes))
	for shortcode, votes := range t.votes {
		results = append(results, Result{Shortcode: shortcode, Votes: votes})
	}
	slices.SortFunc(results, func(a, b Result) int {
		// The arguments of the first comparison are exchanged for a descending order.
		return cmp.Or(cmp.Compare(b.Votes, a.Votes), cmp.Compare(a.Shortcode, b.Shortcode))
	})
	return results
}
