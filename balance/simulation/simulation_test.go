package simulation

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func seeds() []uint64 { return []uint64{1, 2, 3} }

// outcome has the medians of one scenario in the order of contenders.
type outcome struct {
	sc      scenario
	results []result
}

func (o *outcome) of(name string) *result {
	for i, c := range contenders() {
		if c.name == name {
			return &o.results[i]
		}
	}
	return nil
}

// isListed reports whether the page lists the claim among those that do not hold.
func isListed(page []byte, scenario string, c claim) bool {
	return bytes.Contains(page, fmt.Appendf(nil, "\n| %s | %s | ", scenario, c.what))
}

// compared returns the medians of runs with these seeds.
func compared(seeds []uint64, run func(seed uint64) result) result {
	rs := make([]result, len(seeds))
	for i, seed := range seeds {
		rs[i] = run(seed)
	}
	return median(rs)
}

// TestClaims compares the default with the peers. The short form has the scenarios below with
// the strongest peers and one seed. It has the cold join without peers, because that is the
// longest.
func TestClaims(t *testing.T) {
	short := map[string]bool{
		"one fails": true, "1 × 10, uneven, 85 %": true, "1 req/s, ten fail": true, "pauses, random": true, "cold join": true,
	}
	strong := map[string]bool{
		ourDefault: true, "least request, scan": true, "envoy": true, "linkerd, load biaser": true, "go-zero": true, "prequal": true, "c3": true,
	}
	full := os.Getenv("GOTOWER_TESTS") == "full"
	page, err := os.ReadFile("../SIMULATION.md")
	require.NoError(t, err)
	for _, sc := range scenarios() {
		if !full && !short[sc.name] {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			o, n := outcome{sc: sc}, 1
			if full {
				n = len(seeds())
			}
			for _, c := range contenders() {
				r := result{P99: math.Inf(1)}
				if full || strong[c.name] && (!raced || c.kind != ours) && (sc.name != "cold join" || c.name == ourDefault) {
					r = compared(seeds()[:n], func(seed uint64) result { return run(t, &sc, c, seed).measure() })
				}
				o.results = append(o.results, r)
			}
			if raced {
				return // the real balancer is too slow with the race detector
			}
			for _, c := range o.claims() {
				if value, ok := c.met(o.of(ourDefault)); !ok && !isListed(page, sc.name, c) {
					t.Errorf("%s: %s, got %.2f", c.what, c.bound, value)
				}
			}
		})
	}
}

// TestTable writes SIMULATION.md. With -results, finished runs are read from that file and new
// ones are added to it, so that an interrupted comparison continues.
func TestTable(t *testing.T) {
	if flag.Lookup(tableFlag).Value.String() != "true" {
		t.Skip("go generate runs it")
	}
	path := flag.Lookup(resultsFlag).Value.String()
	stored := make(map[string]result)
	if text, err := os.ReadFile(path); err == nil {
		require.NoError(t, json.Unmarshal(text, &stored))
	}
	began := time.Now()
	find := func(scenario, contender string, run func(seed uint64) result) result {
		key := scenario + ": " + contender
		if _, ok := stored[key]; !ok {
			stored[key] = compared(seeds(), run)
		}
		return stored[key]
	}
	finish := func(scenario string) {
		if text, err := json.Marshal(stored); path != "" {
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, text, 0o600))
		}
		t.Logf("%v: %s", time.Since(began).Round(time.Second), scenario)
	}
	var outcomes []outcome
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			o := outcome{sc: sc}
			for _, c := range contenders() {
				o.results = append(o.results, find(sc.name, c.name, func(seed uint64) result { return run(t, &sc, c, seed).measure() }))
			}
			outcomes = append(outcomes, o)
		})
		finish(sc.name)
	}
	var stacks []stackOutcome
	for _, sc := range stackScenarios() {
		t.Run(sc.name, func(t *testing.T) {
			o := stackOutcome{sc: sc}
			for _, c := range sc.stacks {
				o.results = append(o.results, find(sc.name, c.name, func(seed uint64) result { return sc.run(t, c, seed) }))
			}
			stacks = append(stacks, o)
		})
		finish(sc.name)
	}
	if !t.Failed() && len(outcomes) == len(scenarios()) && len(stacks) == len(stackScenarios()) {
		require.NoError(t, os.WriteFile("../SIMULATION.md", []byte(document(outcomes, stacks)), 0o644))
	}
}
