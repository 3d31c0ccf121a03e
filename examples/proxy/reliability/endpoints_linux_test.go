package reliability

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// The cost of a target with many endpoints: memory per endpoint, CPU time per request and per
// change, and the longest request while all endpoints are replaced.
func TestEndpoints(t *testing.T) {
	whole(t)
	if !full {
		t.Skip("the figures of few endpoints are not exact")
	}
	few := measureEndpoints(t, 10)
	for _, n := range []int{1000, 10_000} {
		many := measureEndpoints(t, n)
		assert.LessOrEqual(t, many.request, few.request*12/10, "CPU time of a request with %d endpoints", n)
		if n == 10_000 { // with fewer, the heap's growth in steps hides it
			assert.LessOrEqual(t, many.known, 8.0)
		}
		assert.LessOrEqual(t, many.change, 50*time.Microsecond)
		assert.LessOrEqual(t, many.longest, 100*time.Millisecond)
	}
}

// endpointFigures are the figures for a target with a number of endpoints.
type endpointFigures struct {
	known           float64       // KiB per endpoint without requests
	request, change time.Duration // CPU time per request, and per added or removed endpoint
	longest         time.Duration // longest request while all endpoints are replaced
}

func measureEndpoints(t *testing.T, n int) (f endpointFigures) {
	t.Helper()
	port := serveLoopback(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	set := func(from, to int) controller.Config {
		addrs := make([]string, 0, to-from)
		for i := from; i < to; i++ {
			addrs = append(addrs, fmt.Sprintf("127.%d.%d.%d:%d", 1+i>>16, i>>8&0xff, i&0xff, port))
		}
		return served(webName, controller.Unknown, addrs...)
	}
	pl := newPlane(t)
	require.NoError(t, pl.Set(set(1, 2)))
	p := startProxy(t, pl.addr, "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT=10m")
	one := through(t, p.addr, false)
	request := func() error { return get(context.Background(), one, "http://web.test/") }
	require.NoError(t, request())
	before := p.steady(t)

	require.NoError(t, pl.Set(set(1, n+1)))
	p.knows(t, n)
	f.known = (p.steady(t).heap - before.heap) * 1024 / float64(n)

	const requests, changes, rounds = 20_000, 1000, 20
	start := p.cpu(t)
	for range requests {
		require.NoError(t, request())
	}
	f.request = (p.cpu(t) - start) / requests

	start = p.cpu(t)
	for i := range rounds {
		end := n + 1
		if i%2 == 0 {
			end += changes
		}
		require.NoError(t, pl.Set(set(1, end)))
		p.knows(t, end-1)
	}
	f.change = (p.cpu(t) - start) / (changes * rounds)

	load := offer(t, 200, func(ctx context.Context, _ int) error { return get(ctx, one, "http://web.test/") })
	load.more(t, 200)
	require.NoError(t, pl.Set(set(n+2, 2*n+2)))
	load.more(t, 600)
	load.end()
	assert.Empty(t, load.bad())
	f.longest = load.longest()
	t.Logf("%d endpoints: %.1f KiB known, request %v, change of an endpoint %v, longest request at a replacement %v",
		n, f.known, f.request, f.change, f.longest)
	return f
}

// The memory of an endpoint that has served a request: its service, its metrics and an idle
// connection with buffers and goroutines.
func TestUsedEndpoints(t *testing.T) {
	whole(t)
	if !full {
		t.Skip("the memory of few endpoints is not exact")
	}
	t.Run("HTTP1", func(t *testing.T) { measureUsedEndpoints(t, controller.Unknown) })
	t.Run("HTTP2", func(t *testing.T) { measureUsedEndpoints(t, controller.H2) })
}

func measureUsedEndpoints(t *testing.T, protocol controller.Protocol) {
	t.Helper()
	const targets, each = 40, 24 // a balancer considers all of 24 endpoints for a request
	var mu sync.Mutex
	used := make(map[string]bool)
	port := serveLoopback(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		used[r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).String()] = true
	})
	set := func(each int) controller.Config {
		all := controller.Config{Destinations: make(map[string]controller.Destination)}
		for i := range targets {
			var addrs []string
			for j := range each {
				addrs = append(addrs, fmt.Sprintf("127.1.%d.%d:%d", i+1, j+1, port))
			}
			maps.Copy(all.Destinations, served(fmt.Sprintf("web-%d.test:80", i), protocol, addrs...).Destinations)
		}
		return all
	}
	pl := newPlane(t)
	require.NoError(t, pl.Set(set(1)))
	p := startProxy(t, pl.addr, "GOGC=1", // almost no garbage
		"LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT=10m", "LINKERD2_PROXY_OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT=10m")
	client := through(t, p.addr, protocol == controller.H2)
	request := func() {
		for i := range targets {
			require.NoError(t, get(t.Context(), client, fmt.Sprintf("http://web-%d.test/", i)))
		}
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(used)
	}
	request()
	before, first := p.steady(t), count()
	require.NoError(t, pl.Set(set(each)))
	p.knows(t, targets*each)
	for i := 0; i < 50*each && count() < targets*each; i++ {
		request()
	}
	now, n := p.steady(t), count()-first
	require.Greater(t, n, targets*each/2)
	kib := (now.heap - before.heap) * 1024 / float64(n)
	t.Logf("%d endpoints in use: %.1f KiB, %.1f files and %.1f goroutines each", n, kib,
		float64(now.fds-before.fds)/float64(n), float64(now.goroutines-before.goroutines)/float64(n))
	assert.LessOrEqual(t, kib, 25.0)
}

// serveLoopback serves h at all loopback addresses and returns its port.
func serveLoopback(t *testing.T, h http.HandlerFunc) (port int) {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: h, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

// knows waits until the proxy knows n endpoints.
func (p *process) knows(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		m, err := p.metrics()
		return err == nil && m["outbound_http_balancer_endpoints"] == float64(n)
	}, patience, 10*time.Millisecond)
}

// cpu returns the CPU time of all the proxy's threads.
func (p *process) cpu(t *testing.T) (sum time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require.NoError(t, err)
		sum += time.Duration(ns)
	}
	return sum
}

// longest returns the duration of the longest successful call.
func (l *load) longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Max(l.outcome[fine])
}
