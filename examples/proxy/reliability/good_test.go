package reliability

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// good is regular traffic during an attack: a request every pace, over HTTP/1.1 and HTTP/2 in turn.
type good struct {
	stop chan struct{}
	done sync.WaitGroup

	mu     sync.Mutex
	took   []time.Duration
	failed []string
}

var pace = time.Duration(size(2, 5)) * time.Millisecond

func (tn *testProxy) traffic(t testing.TB) *good {
	t.Helper()
	g := &good{stop: make(chan struct{})}
	for _, protocol := range []func(*http.Protocols){
		func(p *http.Protocols) { p.SetHTTP1(true) }, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		protocol(transport.Protocols)
		client := &http.Client{Transport: transport, Timeout: patience}
		g.done.Go(func() {
			defer transport.CloseIdleConnections()
			tick := time.NewTicker(2 * pace)
			defer tick.Stop()
			for {
				select {
				case <-g.stop:
					return
				case <-tick.C:
					g.request(client, "http://"+tn.addr+"/")
				}
			}
		})
	}
	t.Cleanup(g.end)
	return g
}

func (g *good) request(client *http.Client, url string) {
	start := time.Now()
	rsp, err := client.Get(url)
	why := ""
	if err == nil {
		if _, err = io.Copy(io.Discard, rsp.Body); err == nil && rsp.StatusCode != http.StatusOK {
			why = rsp.Status
		}
		rsp.Body.Close()
	}
	if err != nil {
		why = err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.took = append(g.took, time.Since(start))
	if why != "" {
		g.failed = append(g.failed, why)
	}
}

// count returns the number of requests so far.
func (g *good) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.took)
}

// more waits for n more requests.
func (g *good) more(t testing.TB, n int) {
	t.Helper()
	before := g.count()
	require.Eventually(t, func() bool { return g.count() >= before+n }, patience, pace)
}

func (g *good) end() {
	select {
	case <-g.stop:
	default:
		close(g.stop)
	}
	g.done.Wait()
}

// p99 returns the 99th percentile of the latency of the requests from number first to number last.
func (g *good) p99(first, last int) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	took := slices.Sorted(slices.Values(g.took[first:last]))
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*99/100]
}

// under runs attack while good clients send requests. It requires that none of these fails, and
// logs their latency.
func (tn *testProxy) under(t *testing.T, attack func()) {
	t.Helper()
	g := tn.traffic(t)
	g.more(t, 100)
	before := g.count()
	attack()
	g.more(t, 50)
	after := g.count()
	g.end()
	t.Logf("good traffic: p99 %v before, %v during, %d failures of %d",
		g.p99(0, before).Round(time.Microsecond), g.p99(before, after).Round(time.Microsecond), len(g.failed), len(g.took))
	require.Empty(t, g.failed)
}
