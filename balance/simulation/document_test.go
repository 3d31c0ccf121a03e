package simulation

import (
	"fmt"
	"math"
	"strings"
)

const preface = `# Simulation of balancers

<!-- Written by go generate ./balance/simulation; do not edit. -->

The real balancer of this package and the rules of other balancers run against the same simulated backends: Poisson arrivals,
lognormal times, workers and a queue for each backend, in virtual time.

    go generate ./balance/simulation                     # this page
    go test ./balance/simulation                         # some scenarios with the strongest peers and one seed
    GOTOWER_TESTS=full go test ./balance/simulation      # all claims

Each figure is the median of %d runs (seeds %v). All policies get the same arrivals and the same work for each request.
**p50, p99, p99.9** are milliseconds from the arrival to the headers. A failure counts as the deadline at least. **good** is the
share of the calls with a response within the deadline. **bad** is the share of the requests that went to the backends with the
trouble, or to the other zone. **uneven** is the greatest difference between the share of a backend and an even share, in points.

## Claims

In every scenario:

- p99 is within 5 %% and the good share within %.2f points of the best peer that uses only its own requests.
- p99 is within 10 %% and the good share within %.2f points of the best peer that uses reports of the backends.

%.1f ms are added to each bound of p99. The best peer may differ between the two figures. Where an endpoint has to be tried
(cold join, rolling restart), the requests that this costs are deducted. Some scenarios have further claims. In zones over their
capacity, ours trades latency for less traffic between zones.
`

// fidelity compares the rules with the code of two peers, in another simulation with nine seeds. It
// is not generated, because that code is not a dependency of this module.
const fidelity = `
Kratos and go-zero reset their state with every change of the set, as the originals do. The table compares their rules here with
the code of kratos v2.8.3 and go-zero v1.10.3 (medians of nine seeds, 40 000 requests each). The other rules were not compared
with a run of the original.

| scenario | kratos: p99 | rule | good % | rule | go-zero: p99 | rule | good % | rule |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| one slow | 16.9 | 16.9 | 99.76 | 99.74 | 16.6 | 16.5 | 99.84 | 99.85 |
| one fails (with the real latency of failures) | 16.0 | 16.0 | 99.97 | 99.97 | 16.0 | 16.0 | 99.19 | 99.19 |
| one stalls | 16.0 | 16.0 | 99.99 | 99.99 | 16.1 | 16.1 | 99.97 | 99.97 |
| unequal, 65 % | 73.9 | 74.2 | 99.61 | 99.63 | 72.2 | 72.9 | 99.65 | 99.63 |
| unequal, 50 clients | 80.0 | 80.7 | 99.53 | 99.53 | 94.1 | 90.8 | 99.16 | 99.25 |
| equal, busy | 34.5 | 34.5 | 99.99 | 99.99 | 33.1 | 33.1 | 99.99 | 99.99 |
`

// document returns SIMULATION.md.
func document(outcomes []outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, preface, len(seeds()), seeds(), goodSlack, goodSlack, leastWorth)
	writeClaims(&b, outcomes)
	writeSummary(&b, outcomes)
	b.WriteString("\n## Policies\n\n| policy | rule | source |\n|---|---|---|\n")
	for _, c := range contenders() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name, c.rule, c.source)
	}
	b.WriteString(fidelity)
	b.WriteString("\n## Scenarios\n")
	for i := range outcomes {
		writeScenario(&b, &outcomes[i])
	}
	return b.String()
}

// writeClaims lists the claims that do not hold.
func writeClaims(b *strings.Builder, outcomes []outcome) {
	var all, near int
	var rows strings.Builder
	missed := 0
	for i := range outcomes {
		o := &outcomes[i]
		if o.nearOracle() {
			near++
		}
		for _, c := range o.claims() {
			all++
			if value, ok := c.met(o.of(ourDefault)); !ok {
				missed++
				fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", o.sc.name, c.what, c.bound, number(value))
			}
		}
	}
	fmt.Fprintf(b, "\n%d of %d claims hold. The others are:\n\n| scenario | claim | bound | result |\n|---|---|--:|--:|\n%s", all-missed, all, rows.String())
	fmt.Fprintf(b, "\nThe default is within 5 %% of the oracle in %d of %d scenarios.\n", near, len(outcomes))
}

func writeSummary(b *strings.Builder, outcomes []outcome) {
	b.WriteString("\n## Summary\n\np99 and good share. In zones, the third figure is the share of the requests to the other zone; the lowest is best. " +
		"The column\noracle has a mark where the default is within 5 % of it.\n\n" +
		"| scenario | gotower | best peer | best peer with reports | oracle |\n|---|--:|--:|--:|--:|\n")
	for i := range outcomes {
		o := &outcomes[i]
		fmt.Fprintf(b, "| %s ", o.sc.name)
		for _, r := range []result{*o.of(ourDefault), o.bestOf(local), o.bestOf(feedback), o.bestOf(perfect)} {
			fmt.Fprintf(b, "| %.1f, %.2f", r.P99, r.Good)
			if o.sc.zone != nil {
				fmt.Fprintf(b, ", %.1f %%", r.Bad)
			}
			b.WriteString(" ")
		}
		if o.nearOracle() {
			b.WriteString("✓ ")
		}
		b.WriteString("|\n")
	}
}

func writeScenario(b *strings.Builder, o *outcome) {
	sc := &o.sc
	fmt.Fprintf(b, "\n### %s\n\n%s. %.0f requests per second for %v, deadline %v", sc.name, strings.ToUpper(sc.what[:1])+sc.what[1:],
		sc.rate, sc.length.Round(sec/10), sc.deadline)
	if sc.from > 0 {
		fmt.Fprintf(b, ", figures from %v on", sc.from)
	}
	b.WriteString(".\n\n| policy | p50 | p99 | p99.9 | good |")
	line := "\n|---|--:|--:|--:|--:|"
	column := func(name string) {
		fmt.Fprintf(b, " %s |", name)
		line += "--:|"
	}
	if sc.bad != nil {
		column("bad")
	}
	column("uneven")
	for _, f := range o.results[0].Extra {
		column(strings.TrimSuffix(f.Name+", "+f.Unit, ", "))
	}
	b.WriteString(line + "\n")
	for i, c := range contenders() {
		r := &o.results[i]
		fmt.Fprintf(b, "| %s | %.1f | %.1f | %.1f | %.2f |", c.name, r.P50, r.P99, r.P999, r.Good)
		if sc.bad != nil {
			fmt.Fprintf(b, " %.2f |", r.Bad)
		}
		fmt.Fprintf(b, " %.2f |", r.Uneven)
		for _, f := range r.Extra {
			fmt.Fprintf(b, " %s |", number(f.Value))
		}
		b.WriteString("\n")
	}
}

func number(v float64) string {
	switch {
	case v >= maxFigure:
		return "never"
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
