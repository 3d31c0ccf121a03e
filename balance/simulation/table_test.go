package simulation

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func seeds() []uint64 { return []uint64{1, 2, 3} }

// outcome is one scenario under every contender: the medians, and the course
// of the first seed.
type outcome struct {
	sc      scenario
	results []result // in the order of contenders
}

func (o *outcome) of(name string) *result {
	for i, c := range contenders() {
		if c.name == name {
			return &o.results[i]
		}
	}
	return &result{}
}

// TestTable writes SIMULATION.md and simulation.svg into the folder above.
func TestTable(t *testing.T) {
	if flag.Lookup(tableFlag).Value.String() != "true" {
		t.Skip("go generate runs it")
	}
	outcomes := make([]outcome, len(scenarios(false)))
	t.Run("run", func(t *testing.T) {
		for i, sc := range scenarios(false) {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				outcomes[i] = compare(t, sc)
			})
		}
	})
	require.NoError(t, os.WriteFile("../SIMULATION.md", []byte(document(outcomes)), 0o644))
	require.NoError(t, os.WriteFile("../simulation.svg", []byte(plot(outcomes)), 0o644))
}

func compare(t *testing.T, sc scenario) outcome {
	t.Helper()
	o := outcome{sc: sc}
	for _, c := range contenders() {
		o.results = append(o.results, compared(t, &sc, c, seeds()))
	}
	return o
}

// compared is what a contender comes to with the seeds.
func compared(t *testing.T, sc *scenario, c contender, seeds []uint64) result {
	t.Helper()
	rs := make([]result, len(seeds))
	for i, seed := range seeds {
		rs[i] = measure(sc, run(t, sc, c, seed))
	}
	return median(rs)
}
