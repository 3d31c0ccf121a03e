package reliability

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Environment variables of an attacker in its own process.
const (
	attackWith = "GOTOWER_TEST_ATTACK"
	attackAt   = "GOTOWER_TEST_ATTACK_AT"
	attackSize = "GOTOWER_TEST_ATTACK_SIZE"
)

// apart runs an attack in another process, waits for its end, and logs its output.
func apart(t *testing.T, attack, addr string, n int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAsAttacker$", "-test.v", "-test.timeout=15m")
	cmd.Env = append(os.Environ(), attackWith+"="+attack, attackAt+"="+addr, attackSize+"="+strconv.Itoa(n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		if _, message, ok := strings.Cut(line, "_test.go:"); ok {
			_, message, _ = strings.Cut(message, " ")
			t.Logf("attacker: %s", strings.TrimSpace(message))
		}
	}
}

// TestAsAttacker is the process that apart starts. It tests nothing by itself.
func TestAsAttacker(t *testing.T) {
	attacks := map[string]func(t *testing.T, addr string, n int){"storm": storm, "reset": resets, "count": counting}
	attack, ok := attacks[os.Getenv(attackWith)]
	if !ok {
		t.Skip("it is for other tests")
	}
	n, err := strconv.Atoi(os.Getenv(attackSize))
	require.NoError(t, err)
	attack(t, os.Getenv(attackAt), n)
}

// attackers is how many attack concurrently.
const attackers = 8

func resets(t *testing.T, addr string, streams int) {
	yields(t)
	start := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns, calmed int
	var longest time.Duration
	for range attackers {
		all.Go(func() {
			n, calm, took := cutOff(t, addr, streams/attackers, takenBack)
			mu.Lock()
			defer mu.Unlock()
			conns, calmed, longest = conns+n, calmed+calm, max(longest, took)
		})
	}
	all.Wait()
	t.Logf("%d streams by %d at a time, over %d connections in %v, of which %d heard ENHANCE_YOUR_CALM; cut within %v",
		streams, attackers, conns, time.Since(start).Round(time.Millisecond), calmed, longest.Round(time.Millisecond))
}

// yields gives the attacker the lowest priority, so that it costs the proxy as much as an attacker
// on another machine.
func yields(t *testing.T) {
	const last = 19
	require.NoError(t, syscall.Setpriority(syscall.PRIO_PGRP, 0, last)) // all of its threads
}

// counting uses processor time for ms milliseconds, without an attack.
func counting(t *testing.T, _ string, ms int) {
	yields(t)
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(ms) * time.Millisecond)
	for range attackers {
		all.Go(func() {
			for time.Now().Before(end) {
			}
		})
	}
	all.Wait()
	t.Logf("%d goroutines counted for %d ms", attackers, ms)
}
