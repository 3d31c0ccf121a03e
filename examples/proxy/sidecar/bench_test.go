package sidecar_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/tap/tappb"
)

// BenchmarkTap measures what watchers cost requests through a whole proxy with eight clients. The
// cases have no watcher, ten with tapctl's filter (100 requests per second in total), and ten that
// request all events. The last watcher never reads. Clients, applications and watchers run in the
// proxy's process, so their CPU time and garbage collection count.
//
// The cases take turns, because a machine's speed varies. Only the quarter of the rounds in which
// the process waited least for the CPU counts. The result is the median CPU time per request.
func BenchmarkTap(b *testing.B) {
	const (
		round  = 1000
		warmup = 3000 // until the buffers of watchers that do not read are full
	)
	cases := []*tapCase{{name: "none"}, {name: "ten", watchers: 10, rps: 10}, {name: "each_event", watchers: 10}}
	ctl, _ := serveController(b, "127.0.0.1:0", at(webName, backend(b, "a"), backend(b, "b"), backend(b, "c")))
	tn := newTestProxy(b, ctl)
	l := tn.loader(b, 8)
	b.ResetTimer()
	for range max(b.N/round, 1) {
		rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		for _, c := range cases {
			leave := c.watch(b, tn.Tap)
			l.load(b, warmup)
			ran, waited := scheduled()
			took := l.load(b, round)
			ranThen, waitedThen := scheduled()
			c.rounds = append(c.rounds, tapRound{took, (ranThen - ran) / round, waitedThen - waited})
			leave()
		}
	}
	b.StopTimer()
	none := cases[slices.IndexFunc(cases, func(c *tapCase) bool { return c.watchers == 0 })].percentile(99)
	for _, c := range cases {
		b.ReportMetric(c.processor(), c.name+"-cpu-µs")
		b.ReportMetric(c.percentile(50), c.name+"-p50-µs")
		b.ReportMetric(c.percentile(99), c.name+"-p99-µs")
		if c.watchers > 0 {
			b.ReportMetric(100*(c.percentile(99)/none-1), c.name+"-p99-%")
		}
	}
}

type tapCase struct {
	name          string
	watchers, rps int
	rounds        []tapRound
}

type tapRound struct {
	took   []time.Duration
	ran    time.Duration // on processors, per request
	waited time.Duration // for a processor
}

// processor returns the median CPU time per request in µs.
func (c *tapCase) processor() float64 {
	slices.SortFunc(c.rounds, func(a, b tapRound) int { return int(a.ran - b.ran) })
	return float64(c.rounds[len(c.rounds)/2].ran) / float64(time.Microsecond)
}

// percentile returns a percentile of the latency in the calm rounds, in µs.
func (c *tapCase) percentile(p int) float64 {
	slices.SortFunc(c.rounds, func(a, b tapRound) int { return int(a.waited - b.waited) })
	var all []time.Duration
	for _, r := range c.rounds[:(len(c.rounds)+3)/4] {
		all = append(all, r.took...)
	}
	slices.Sort(all)
	return float64(all[len(all)*p/100]) / float64(time.Microsecond)
}

// watch watches all requests until leave is called.
func (c *tapCase) watch(b *testing.B, addr string) (leave func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var reading sync.WaitGroup
	var conns []*grpc.ClientConn
	for i := range c.watchers {
		conn, err := grpc.NewClient("passthrough:///"+addr,
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10))
		require.NoError(b, err)
		conns = append(conns, conn)
		req := &tappb.WatchRequest{MaxRps: uint32(c.rps)}
		reads := i < c.watchers-1
		if !reads {
			req.MaxRps = 0
		}
		stream, err := tappb.NewTapClient(conn).Watch(ctx, req)
		require.NoError(b, err)
		_, err = stream.Header()
		require.NoError(b, err)
		if reads {
			reading.Go(func() {
				for {
					if _, err := stream.Recv(); err != nil {
						return
					}
				}
			})
		}
	}
	return func() {
		cancel()
		for _, conn := range conns {
			conn.Close()
		}
		reading.Wait()
	}
}

// scheduled returns how long this process's threads ran, and how long they had to wait for a
// processor. Both are 0 if that is unknown.
func scheduled() (ran, waited time.Duration) {
	tasks, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		if numbers := strings.Fields(string(text)); len(numbers) > 1 {
			a, _ := strconv.ParseInt(numbers[0], 10, 64)
			b, _ := strconv.ParseInt(numbers[1], 10, 64)
			ran, waited = ran+time.Duration(a), waited+time.Duration(b)
		}
	}
	return ran, waited
}

// load sends n requests from some clients, and returns how long each took.
func (tn *testProxy) load(b *testing.B, clients, n int) []time.Duration {
	b.Helper()
	return tn.loader(b, clients).load(b, n)
}

// loader is clients that keep their connections.
type loader []*http.Client

func (tn *testProxy) loader(b *testing.B, clients int) loader {
	b.Helper()
	var l loader
	for range clients {
		l = append(l, tn.client(b))
	}
	return l
}

func (l loader) load(b *testing.B, n int) []time.Duration {
	b.Helper()
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	for i, c := range l {
		wg.Go(func() {
			for j := i; j < n; j += len(l) {
				start := time.Now()
				rsp, err := c.Get("http://" + webName + "/")
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, rsp.Body)
				rsp.Body.Close()
				took[j] = time.Since(start)
				if rsp.StatusCode != http.StatusOK {
					b.Error(rsp.Status)
					return
				}
			}
		})
	}
	wg.Wait()
	return took
}
