package reliability

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gauge is a process's resource usage, according to the system and its metrics.
type gauge struct {
	rss, heap       float64 // MiB; heap is the memory in use, including stacks
	fds, goroutines int
}

func (g gauge) String() string {
	return fmt.Sprintf("RSS %.1f MiB, heap %.1f MiB, %d files, %d goroutines", g.rss, g.heap, g.fds, g.goroutines)
}

// measure returns the proxy's resource usage. The scrape itself uses one file.
func (p *process) measure(t testing.TB) gauge {
	t.Helper()
	metrics, err := p.metrics()
	require.NoError(t, err)
	return gauge{
		rss: p.rss(t), fds: p.fds(t),
		heap:       (metrics["go_memstats_heap_inuse_bytes"] + metrics["go_memstats_stack_inuse_bytes"]) / mib,
		goroutines: int(metrics["go_goroutines"]),
	}
}

func (p *process) rss(t testing.TB) float64 {
	t.Helper()
	return rss(t, p.cmd.Process.Pid)
}

// rss returns a process's RSS in MiB.
func rss(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(status), "VmRSS:")
	require.True(t, ok)
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(t, err)
	return float64(kib) / 1024
}

func (p *process) fds(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	require.NoError(t, err)
	return len(fds)
}

// settled waits until the proxy uses at most this many goroutines and files, or patience is over,
// and returns its usage.
func (p *process) settled(t testing.TB, goroutines, fds int) (now gauge) {
	t.Helper()
	over := time.After(patience)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		now = p.measure(t)
		if now.goroutines <= goroutines && now.fds <= fds {
			return now
		}
		select {
		case <-over:
			return now
		case <-look.C:
		}
	}
}

// metrics returns the admin server's metrics. All series with the same name are added up.
func (p *process) metrics() (map[string]float64, error) {
	text, err := p.ask("/metrics")
	if err != nil {
		return nil, err
	}
	sums := make(map[string]float64)
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, ok := lines.Text(), "", false
		if i := strings.LastIndexByte(name, ' '); i > 0 {
			name, value, ok = name[:i], name[i+1:], true
		}
		name, _, _ = strings.Cut(name, "{")
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
			sums[name] += n
		}
	}
	return sums, nil
}

// ask gets a page from the admin server.
func (p *process) ask(path string) (string, error) {
	c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := c.Get("http://" + p.admin + path)
	if err != nil {
		return "", err
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	if err == nil && rsp.StatusCode != http.StatusOK {
		err = errors.New(rsp.Status)
	}
	return string(body), err
}
