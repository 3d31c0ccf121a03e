package simulation

import (
	"os"
	"testing"
)

// TestOursIsAsGoodAsTheBestPeer holds the default to what the best peer
// reaches in each scenario, figure by figure, to a scan of all, and to what is
// asked of the scenario: by the median of a few seeds, as in the table, for one of
// them may be as bad as chance will have it.
func TestOursIsAsGoodAsTheBestPeer(t *testing.T) {
	full := os.Getenv("GOTOWER_TESTS") == "full" // CI runs all scenarios
	for i, sc := range scenarios(true) {
		if i%4 != 0 && !full {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			if raced && sc.rate*sc.length.Seconds() > 15_000 {
				t.Skip("too long for the race detector")
			}
			o := outcome{sc: sc}
			for _, c := range contenders() {
				var r result
				switch {
				case c.name == ourDefault:
					r = compared(t, &sc, c, seeds())
				case !c.ours || c.name == ourScan && sc.backends <= 100:
					r = compared(t, &sc, c, seeds()[:1])
				}
				o.results = append(o.results, r)
			}
			check(t, &o)
		})
	}
}

func check(t *testing.T, o *outcome) {
	t.Helper()
	for _, c := range o.claims() {
		value, ok := c.met(o.of(ourDefault))
		if !ok {
			t.Errorf("%s: %s, it is %.2f", c.what, c.bound, value)
		}
	}
}
