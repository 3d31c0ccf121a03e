package emojivoto

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// patience is one request's timeout.
	patience = 5 * time.Second
	// inFlight is how many requests the bot may have open.
	inFlight = 64
	// defaultRate is the default rate of the bot, in requests per second.
	defaultRate = 10
)

// Bot sends requests to the web front. Its first three requests read the list, read the
// leaderboard, and vote for the doughnut. After that, about one request in ten reads the list or
// the leaderboard. About 15 % of the votes are for the doughnut, and the others go to the other
// emoji in turn. The same seed always results in the same sequence of requests.
type Bot struct {
	client   *http.Client
	base     string
	interval time.Duration
	seed     uint64

	// Each kind of request has a counter. failed and errors are as in BotCounts.
	votes, doughnuts, lists, leaderboards, failed, errors atomic.Uint64
}

// BotCounts tells how many requests of each kind a bot has sent, and how many have failed.
type BotCounts struct {
	Votes        uint64 // all votes, including those for the doughnut
	Doughnuts    uint64
	Lists        uint64
	Leaderboards uint64
	Failed       uint64 // responses with status 400 or above
	Errors       uint64 // requests without a response
}

// NewBot returns a bot that uses client to send rate requests per second to baseURL, such as
// "http://127.0.0.1:8080". If rate is not positive, it is 10. seed determines the sequence of
// requests.
func NewBot(client *http.Client, baseURL string, rate float64, seed uint64) *Bot {
	// This is also true for NaN.
	if !(rate > 0) {
		rate = defaultRate
	}
	return &Bot{
		client: client,
		base:   strings.TrimSuffix(baseURL, "/"),
		// A very high rate would yield 0, which a ticker does not permit.
		interval: max(time.Duration(float64(time.Second)/rate), 1),
		seed:     seed,
	}
}

// Counts returns the numbers of requests so far. It is safe for concurrent use.
func (b *Bot) Counts() BotCounts {
	// The counters are read one by one, so requests in between may be in some of them only.
	return BotCounts{
		Votes:        b.votes.Load(),
		Doughnuts:    b.doughnuts.Load(),
		Lists:        b.lists.Load(),
		Leaderboards: b.leaderboards.Load(),
		Failed:       b.failed.Load(),
		Errors:       b.errors.Load(),
	}
}

// Run sends requests until ctx ends. It then waits up to five seconds for open requests instead of
// canceling them, because tap would show them as failures.
func (b *Bot) Run(ctx context.Context) {
	plan := newPlan(b.seed)
	// slots holds one element for each open request, which limits their number.
	slots := make(chan struct{}, inFlight)
	ticker := time.NewTicker(b.interval)
	defer ticker.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	// The first request is sent at once, and each next one after a tick.
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		path := plan.next()
		running.Go(func() {
			defer func() { <-slots }()
			// An open request must not end with ctx.
			b.visit(context.WithoutCancel(ctx), path)
		})
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// visit sends one request to path, reads the whole response, and counts the result.
func (b *Bot) visit(ctx context.Context, path string) {
	// A request counts when it is sent, and a failure when it has ended.
	b.count(path)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, http.NoBody)
	if err != nil {
		b.errors.Add(1)
		return
	}
	rsp, err := b.client.Do(req)
	if err != nil {
		b.errors.Add(1)
		return
	}
	defer rsp.Body.Close()
	// A response that ends early is an error too.
	if _, err := io.Copy(io.Discard, rsp.Body); err != nil {
		b.errors.Add(1)
	} else if rsp.StatusCode >= http.StatusBadRequest {
		b.failed.Add(1)
	}
}

// count counts a request to path.
func (b *Bot) count(path string) {
	switch path {
	case listPath:
		b.lists.Add(1)
		return
	case leaderboardPath:
		b.leaderboards.Add(1)
		return
	// A vote for the doughnut also counts as a vote below.
	case votePath(Doughnut):
		b.doughnuts.Add(1)
	}
	b.votes.Add(1)
}
