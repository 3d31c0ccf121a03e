package emojivoto

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// front is a web front without a network. It records requests and responds after a delay. A vote
// for the doughnut gets 500.
type front struct {
	takes time.Duration
	fail  error

	mu      sync.Mutex
	paths   []string
	now     int
	highest int
}

func (f *front) RoundTrip(req *http.Request) (*http.Response, error) {
	f.enter(req.URL.RequestURI())
	defer f.leave()
	select {
	case <-time.After(f.takes):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if f.fail != nil {
		return nil, f.fail
	}
	rsp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Request: req}
	if req.URL.RequestURI() == votePath(Doughnut) {
		rsp.StatusCode = 500
	}
	return rsp, nil
}

func (f *front) enter(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths = append(f.paths, path)
	f.now++
	f.highest = max(f.highest, f.now)
}

func (f *front) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now--
}

// visited runs a bot for some time.
func visited(t *testing.T, f *front, rate float64, seed uint64, d time.Duration) (BotCounts, []string) {
	t.Helper()
	var counts BotCounts
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		b := NewBot(&http.Client{Transport: f}, "http://web/", rate, seed)
		b.Run(ctx)
		counts = b.Counts()
		require.Zero(t, f.now, "Run left a request behind")
	})
	return counts, f.paths
}

func TestBotRateAndDistribution(t *testing.T) {
	counts, paths := visited(t, &front{takes: 10 * time.Millisecond}, 50, 1, 199_990*time.Millisecond)
	require.Len(t, paths, 10_000)
	require.EqualValues(t, len(paths), counts.Votes+counts.Lists+counts.Leaderboards)
	require.InDelta(t, 0.15, float64(counts.Doughnuts)/float64(counts.Votes), 0.01)
	require.InDelta(t, 0.05, float64(counts.Lists)/float64(len(paths)), 0.01)
	require.InDelta(t, 0.05, float64(counts.Leaderboards)/float64(len(paths)), 0.01)
	require.Equal(t, counts.Doughnuts, counts.Failed)
	require.Zero(t, counts.Errors)

	votes := map[string]int{}
	for _, p := range paths {
		votes[p]++
	}
	for _, e := range Catalogue() {
		if e.Shortcode != Doughnut {
			want := float64(counts.Votes-counts.Doughnuts) / float64(len(Catalogue())-1)
			require.InDelta(t, want, votes[votePath(e.Shortcode)], 1, "the others take turns")
		}
	}
}

func TestBotIsDeterministic(t *testing.T) {
	_, first := visited(t, &front{}, 10, 42, 29_950*time.Millisecond)
	_, again := visited(t, &front{}, 10, 42, 29_950*time.Millisecond)
	_, other := visited(t, &front{}, 10, 43, 29_950*time.Millisecond)
	require.Equal(t, first, again)
	require.NotEqual(t, first, other)
	require.Equal(t, []string{"/api/list", "/api/leaderboard", "/api/vote?choice=%3Adoughnut%3A"}, first[:3])
}

// Requests in progress are finished when the bot is stopped, instead of being canceled.
func TestBotDrains(t *testing.T) {
	counts, paths := visited(t, &front{takes: time.Second}, 10, 1, 250*time.Millisecond)
	require.Len(t, paths, 3)
	require.Equal(t, BotCounts{Votes: 1, Doughnuts: 1, Lists: 1, Leaderboards: 1, Failed: 1}, counts)
}

// The bot cancels requests that do not end, and limits their number.
func TestBotSlowFront(t *testing.T) {
	f := &front{takes: time.Hour}
	counts, paths := visited(t, f, 1000, 1, 12*time.Second)
	require.Equal(t, inFlight, f.highest)
	require.Len(t, paths, 3*inFlight, "three times as many in 12 s, at 5 s each")
	require.EqualValues(t, len(paths), counts.Errors)
}

func TestBotCountsErrors(t *testing.T) {
	counts, paths := visited(t, &front{fail: errors.New("refused")}, 10, 1, 950*time.Millisecond)
	require.EqualValues(t, len(paths), counts.Errors)
	require.Zero(t, counts.Failed)

	broken := NewBot(&http.Client{Transport: torn{}}, "http://web", 10, 1)
	broken.visit(t.Context(), listPath)
	require.EqualValues(t, 1, broken.Counts().Errors, "an answer that breaks off is none")

	misdirected := NewBot(http.DefaultClient, "http://%zz", 10, 1)
	misdirected.visit(t.Context(), listPath)
	require.EqualValues(t, 1, misdirected.Counts().Errors)
}

// torn is a response body that ends with an error.
type torn struct{}

func (torn) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusInternalServerError, Body: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))}, nil
}

func TestBotRates(t *testing.T) {
	nan := 0.0
	for _, rate := range []float64{0, -1, nan / nan} {
		_, paths := visited(t, &front{}, rate, 1, 950*time.Millisecond)
		require.Len(t, paths, 10, "the default is 10 a second")
	}
	require.EqualValues(t, 1, NewBot(nil, "", 1e300, 1).interval)
}

func TestBotEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := NewBot(http.DefaultClient, "http://127.0.0.1:1", 10, 1)
	b.Run(ctx)
	require.Equal(t, BotCounts{}, b.Counts())
}

// The bot, the web front and the services work together over real connections.
func TestApplication(t *testing.T) {
	a := newApp(t)
	b := NewBot(a.front.Client(), a.front.URL, 100, 7) // not more than a slow machine answers in time
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { b.Run(ctx) })
	require.Eventually(t, func() bool {
		counts := b.Counts()
		return counts.Votes > 20 && counts.Doughnuts > 0
	}, 50*time.Second, time.Millisecond)
	cancel()
	running.Wait()

	counts := b.Counts()
	require.Zero(t, counts.Errors)
	require.Equal(t, counts.Doughnuts, counts.Failed, "only doughnuts fail")
	require.Equal(t, counts.Doughnuts, a.voting.Counts()["VoteDoughnut"])
	require.Equal(t, counts.Leaderboards, a.voting.Counts()["Results"])
	require.Equal(t, counts.Votes, a.emoji.Counts()["FindByShortcode"])
	require.Equal(t, counts.Lists+counts.Leaderboards, a.emoji.Counts()["ListAll"])
	var votes uint64
	for _, r := range a.tally.Results() {
		votes += r.Votes
	}
	require.Equal(t, counts.Votes-counts.Doughnuts, votes)
}
