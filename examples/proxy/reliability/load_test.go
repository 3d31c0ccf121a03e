package reliability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load sends requests at a fixed rate that does not depend on response times (an open loop).
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	outcome map[string][]time.Duration // durations by outcome
}

// fine is the outcome of a successful call.
const fine = "good"

// mostOpen limits open calls, and with them the resources that a test uses if the proxy does not
// respond.
const mostOpen = 5000

// offer makes perSecond calls per second until the load is ended.
func offer(t testing.TB, perSecond int, call func(ctx context.Context, i int) error) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel, outcome: make(map[string][]time.Duration)}
	l.done.Go(func() {
		slots := make(chan struct{}, mostOpen)
		begin, tick := time.Now(), time.NewTicker(2*time.Millisecond)
		defer tick.Stop()
		for i := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for ; i < int(time.Since(begin).Seconds()*float64(perSecond)); i++ {
				slots <- struct{}{}
				this := i
				l.done.Go(func() {
					defer func() { <-slots }()
					start := time.Now()
					l.add(call(context.WithoutCancel(ctx), this), time.Since(start))
				})
			}
		}
	})
	t.Cleanup(l.end)
	return l
}

func (l *load) add(err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := fine
	if err != nil {
		how = err.Error()
	}
	l.outcome[how] = append(l.outcome[how], took)
}

// end stops sending, and waits for open calls.
func (l *load) end() {
	l.cancel()
	l.done.Wait()
}

// count returns how many calls had this outcome.
func (l *load) count(how string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.outcome[how])
}

func (l *load) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, took := range l.outcome {
		n += len(took)
	}
	return n
}

// more waits for n more successful calls.
func (l *load) more(t testing.TB, n int) {
	t.Helper()
	before := l.count(fine)
	require.Eventually(t, func() bool { return l.count(fine) >= before+n }, 2*patience, time.Millisecond)
}

// bad returns all other outcomes and how often they occurred.
func (l *load) bad() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	bad := make(map[string]int)
	for how, took := range l.outcome {
		if how != fine {
			bad[how] = len(took)
		}
	}
	return bad
}

// p99 returns the 99th percentile of the durations with this outcome, without the first skip calls.
func (l *load) p99(how string, skip int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.outcome[how]
	return percentile(took[min(skip, len(took)):], 99)
}

func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	took = slices.Sorted(slices.Values(took))
	return took[len(took)*p/100].Round(10 * time.Microsecond)
}

func (l *load) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d good, p99 %v", l.count(fine), l.total(), l.p99(fine, 0))
	for how, n := range l.bad() {
		fmt.Fprintf(&b, "; %d: %s", n, how)
	}
	return b.String()
}

// through returns a client that sends all requests to addr, over HTTP/1.1 or HTTP/2. It only has
// net/http's own retries.
func through(t testing.TB, addr string, h2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{
		Protocols: new(http.Protocols), MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// get sends a request whose response must have the status 200.
func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	return do(c, req)
}

// do returns an error that contains the proxy's response if the request fails.
func do(c *http.Client, req *http.Request) error {
	rsp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	if _, err = io.Copy(io.Discard, rsp.Body); err != nil {
		return err
	}
	if rsp.StatusCode != http.StatusOK {
		return errors.New(rsp.Status + " " + rsp.Header.Get("L5d-Proxy-Error"))
	}
	return nil
}
