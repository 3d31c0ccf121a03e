package emojivoto

import (
	"math/rand/v2"
	"net/url"
)

const (
	listPath        = "/api/list"
	leaderboardPath = "/api/leaderboard"
)

func votePath(shortcode string) string { return "/api/vote?choice=" + url.QueryEscape(shortcode) }

// plan generates the sequence of the paths that the bot requests.
type plan struct {
	first  []string // paths of the first requests, one of each kind
	others []string // paths of votes for all emoji but the doughnut, in random order
	turn   int
	random *rand.Rand
}

func newPlan(seed uint64) *plan {
	p := &plan{
		first:  []string{listPath, leaderboardPath, votePath(Doughnut)},
		random: rand.New(rand.NewPCG(seed, seed)),
	}
	for _, e := range Catalogue() {
		if e.Shortcode != Doughnut {
			p.others = append(p.others, votePath(e.Shortcode))
		}
	}
	p.random.Shuffle(len(p.others), func(i, j int) { p.others[i], p.others[j] = p.others[j], p.others[i] })
	return p
}

func (p *plan) next() string {
	if len(p.first) > 0 {
		path := p.first[0]
		p.first = p.first[1:]
		return path
	}
	switch dice := p.random.IntN(100); {
	case dice < 5:
		return listPath
	case dice < 10:
		return leaderboardPath
	}
	if p.random.IntN(100) < 15 {
		return votePath(Doughnut)
	}
	p.turn++
	return p.others[p.turn%len(p.others)]
}
