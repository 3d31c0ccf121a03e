package emojivoto

import (
	"math/rand/v2"
	"net/url"
)

// Paths of the web front.
const (
	listPath        = "/api/list"
	leaderboardPath = "/api/leaderboard"
)

// votePath returns the path that votes for the emoji.
func votePath(shortcode string) string { return "/api/vote?choice=" + url.QueryEscape(shortcode) }

// plan generates the sequence of the paths that the bot requests.
type plan struct {
	first  []string // paths of the first requests, one of each kind
	others []string // paths of votes for all emoji but the doughnut, in random order
	// turn counts the votes for others. Its remainder selects the next one.
	turn   int
	random *rand.Rand
}

// newPlan returns the plan for a seed, with the votes in a random order.
func newPlan(seed uint64) *plan {
	// The generator takes two numbers, and one seed is enough here.
	p := &plan{
		first:  []string{listPath, leaderboardPath, votePath(Doughnut)},
		random: rand.New(rand.NewPCG(seed, seed)),
	}
	for _, e := range Catalogue() {
		if e.Shortcode != Doughnut {
			p.others = append(p.others, votePath(e.Shortcode))
		}
	}
	// The votes of two bots should not be in the same order.
	p.random.Shuffle(len(p.others), func(i, j int) { p.others[i], p.others[j] = p.others[j], p.others[i] })
	return p
}

// next returns the path of the next request.
func (p *plan) next() string {
	if len(p.first) > 0 {
		path := p.first[0]
		p.first = p.first[1:]
		return path
	}
	// 10 of 100 requests read, and 15% of the others vote for the doughnut.
	switch dice := p.random.IntN(100); {
	case dice < 5:
		return listPath
	case dice < 10:
		return leaderboardPath
	}
	// This is a second throw, so the share is one of the votes.
	if p.random.IntN(100) < 15 {
		return votePath(Doughnut)
	}
	p.turn++
	return p.others[p.turn%len(p.others)]
}
