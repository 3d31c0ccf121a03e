package emojivoto

import (
	"cmp"
	"slices"
	"sync"
)

// Tally counts the votes. The replicas of a voting service share one, as they
// would share a database. It is safe for concurrent use.
type Tally struct {
	mu    sync.Mutex
	votes map[string]uint64
}

// Result is the number of votes of an emoji.
type Result struct {
	Shortcode string
	Votes     uint64
}

// NewTally returns a tally without votes.
func NewTally() *Tally { return &Tally{votes: make(map[string]uint64)} }

// Vote counts one vote for an emoji.
func (t *Tally) Vote(shortcode string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.votes[shortcode]++
}

// Results returns the emoji with votes, the one with the most votes first. Equal ones are
// in the order of their shortcodes.
func (t *Tally) Results() []Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	results := make([]Result, 0, len(t.votes))
	for shortcode, votes := range t.votes {
		results = append(results, Result{Shortcode: shortcode, Votes: votes})
	}
	slices.SortFunc(results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(b.Votes, a.Votes), cmp.Compare(a.Shortcode, b.Shortcode))
	})
	return results
}
