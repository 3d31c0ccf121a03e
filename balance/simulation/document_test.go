package simulation

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

const preface = `# Simulation of balancers

<!-- Written by go generate ./balance/simulation; do not edit. -->

The real balancer of this package, with its defaults and with other options, and the rules of other balancers run against
the same simulated backends: Poisson arrivals, lognormal times, workers and a queue for each backend, in virtual time.

![good responses, p99 and the share of a bad endpoint](simulation.svg)

    go generate ./balance/simulation      # this page and the plot, in minutes
    go test ./balance/simulation          # a shorter run, which checks the claims below

## How to read it

- Each figure is the median of %d runs (seeds %v). All policies get the same arrivals and the same work for each request.
- **p50, p99, p99.9** are milliseconds from the arrival to the headers of the response. A failure counts as at least the deadline,
  because a fast failure is not a fast response.
- **good** responses succeeded within the deadline (%v). Canceled requests are not counted.
- **bad** is the share of the requests sent to the backend with the trouble. **uneven** is the greatest difference between a
  backend's share and an even share, in points.
- A balancer has to try a bad endpoint now and then to notice its recovery. A share of 0 is not the aim.

## The policies

| policy | rule |
|---|---|
| gotower | ` + "`balance.New`" + ` with its defaults and a classifier that treats errors as failures |
| gotower, … | the same with the options named |
| round robin, random | by position |
| least loaded, scan of all | the fewest requests in flight of all; ties at random |
| least loaded of two (grpc-go) | of two drawn with replacement: ` + "`least_request`" + ` of grpc-go, and Envoy's with equal weights |
| tower | two choices by peak EWMA × (in flight + 1): 30 ms at first, decay 10 s, a read writes the decayed value back, in flight until the headers |
| linkerd | tower with linkerd's failure accrual: ejected after 7 failures in a row, for 1 s to 60 s, then one probe |
| finagle | P2C peak EWMA: an endpoint without history gets one probe at once; ejected after 5 failures in a row, for 5 s to 5 min |
| kratos | ` + "`selector/p2c`" + `: averages of latency and success over 600 ms, the loser forced after 3 s without a pick |
| go-zero | ` + "`p2c_ewma`" + `: √latency × (in flight + 1) over 10 s, pairs redrawn while one is unhealthy, the loser forced after 1 s |

The rules of peers are reimplemented from their sources. Kratos and go-zero start again with every change of the set, as the
originals do.
`

// document is SIMULATION.md.
func document(outcomes []outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, preface, len(seeds()), seeds(), outcomes[0].sc.deadline)
	b.WriteString(fidelity)
	b.WriteString("\n## The claims\n\n")
	writeClaims(&b, outcomes)
	b.WriteString("\n## The scenarios\n")
	for i := range outcomes {
		writeScenario(&b, &outcomes[i])
	}
	return b.String()
}

// writeClaims says what the default does not reach.
func writeClaims(b *strings.Builder, outcomes []outcome) {
	var all int
	var rows []string
	for i := range outcomes {
		o := &outcomes[i]
		for _, c := range o.claims() {
			all++
			if value, ok := c.met(o.of(ourDefault)); !ok {
				rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |\n", o.sc.name, c.what, c.bound, number(value)))
			}
		}
	}
	fmt.Fprintf(b, `In every scenario p99, p99.9 and the good share of the default have to match the best peer in that figure. They also have
to be near a scan of all endpoints by the same cost. Some scenarios have further claims.
Tolerances: p99 %.0f %% against a peer and %.0f %% against a scan, p99.9 %.0f %% (it is the worst thousandth of a short run),
%.1f ms in addition, %.2f points of good share. Where an endpoint has to be tried (cold join), the requests that
this costs are deducted, and p99.9 is not compared. Where the aim is not latency (zones, busy), nothing is compared.

%d of %d claims hold.
`, 100*(p99Slack-1), 100*(scanSlack-1), 100*(p999Slack-1), leastWorth, goodSlack, all-len(rows), all)
	if len(rows) == 0 {
		return
	}
	b.WriteString("\n| scenario | not met | bound | is |\n|---|---|--:|--:|\n" + strings.Join(rows, ""))
}

// claims are all claims of a scenario.
func (o *outcome) claims() []claim {
	var peers []result
	for i, c := range contenders() {
		if !c.ours {
			peers = append(peers, o.results[i])
		}
	}
	claims := slices.Clone(o.sc.claims)
	if !o.sc.apart {
		claims = append(claims, asGoodAs(&o.sc, peers)...)
	}
	if scan := o.of(ourScan); scan.good > 0 { // of many endpoints it takes too long for a test
		claims = append(claims, nearScan(*scan)...)
	}
	return claims
}

func writeScenario(b *strings.Builder, o *outcome) {
	sc := &o.sc
	fmt.Fprintf(b, "\n### %s\n\n%s. %.0f requests a second for %v", capital(sc.name), capital(sc.what), sc.rate, sc.length.Round(sec/10))
	if sc.from > 0 {
		fmt.Fprintf(b, ", figures from %v on", sc.from)
	}
	b.WriteString(".\n\n| policy | p50 | p99 | p99.9 | good % |")
	line := "\n|---|--:|--:|--:|--:|"
	if sc.bad != nil {
		b.WriteString(" bad % |")
		line += "--:|"
	}
	b.WriteString(" uneven |")
	line += "--:|"
	for _, f := range o.results[0].extra {
		name := f.name
		if f.unit != "" {
			name += ", " + f.unit
		}
		fmt.Fprintf(b, " %s |", name)
		line += "--:|"
	}
	b.WriteString(line + "\n")
	for i, c := range contenders() {
		writeRow(b, sc, c, &o.results[i])
	}
}

func writeRow(b *strings.Builder, sc *scenario, c contender, r *result) {
	name := c.name
	if name == ourDefault {
		name = "**" + name + "**"
	}
	fmt.Fprintf(b, "| %s | %.1f | %.1f | %.1f | %.2f |", name, r.p50, r.p99, r.p999, r.good)
	if sc.bad != nil {
		fmt.Fprintf(b, " %.2f |", r.bad)
	}
	fmt.Fprintf(b, " %.2f |", r.uneven)
	for _, f := range r.extra {
		fmt.Fprintf(b, " %s |", number(f.value))
	}
	b.WriteString("\n")
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "never"
	case v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
