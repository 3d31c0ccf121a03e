package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/examples/tapctl/text"
)

// errOnlyCluster is returned by a command that reads pod metrics, for other targets.
var errOnlyCluster = errors.New("the targets must be resources of a cluster, such as deploy/web")

// authzCommand is "tapctl authz". It prints what the policies of pods decide, from their proxies'
// metrics.
type authzCommand struct {
	output   string
	duration time.Duration
}

func (c *authzCommand) flags(f *flag.FlagSet) {
	f.StringVar(&c.output, "o", "", "`format`: json")
	f.DurationVar(&c.duration, "for", 10*time.Second, "`time` to count")
}

// check reports invalid flags.
func (c *authzCommand) check() error {
	if c.output != "" && c.output != "json" {
		return fmt.Errorf("-o %s: no such format; there is json", c.output)
	}
	if c.duration <= 0 {
		return noTime("--for", c.duration)
	}
	return nil
}

// run reads the metrics twice, c.duration apart, and prints the differences.
func (c *authzCommand) run(ctx context.Context, term terminal) error {
	if term.pods == nil {
		return usageError{errOnlyCluster}
	}
	rows, err := term.pods.Cluster.Decisions(ctx, term.pods.Resources, c.duration, warner(term.err))
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return text.WriteJSON(term.out, decisionsJSON(rows))
	// Nothing was counted, so the table would be empty.
	case len(rows) == 0:
		_, err := fmt.Fprintln(term.err, "tapctl: no proxy has received a request or connection")
		return err
	}
	return writeDecisions(term.out, rows)
}

// writeDecisions writes a table with the columns of "linkerd viz authz".
func writeDecisions(out io.Writer, rows []cluster.Decision) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROUTE\tSERVER\tAUTHORIZATION\tUNAUTHORIZED\tSUCCESS\tRPS\tLATENCY_P50\tLATENCY_P95\tLATENCY_P99")
	for _, r := range rows {
		cells := []string{orDash(r.Route), r.Server, orDash(r.Authorization), text.Rate(r.Denied / r.Period.Seconds())}
		// Without requests, rates and latencies have no meaning.
		if requests := r.Success + r.Failures; requests == 0 {
			cells = append(cells, "-", "-", "-", "-", "-")
		} else {
			cells = append(cells, text.Percent(uint64(r.Success), uint64(requests)), text.Rate(requests/r.Period.Seconds()))
			for _, q := range []float64{0.5, 0.95, 0.99} {
				latency, _ := r.Quantile(q)
				cells = append(cells, text.Duration(latency))
			}
		}
		writeRow(w, cells)
	}
	return w.Flush()
}

// writeRow writes a line of a table.
func writeRow(w io.Writer, cells []string) {
	for i := range cells {
		cells[i] = text.Clean(cells[i])
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// orDash returns s, or "-" for an empty cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// decision is a row of the table in JSON. A value is null if no request was permitted.
type decision struct {
	Route         string   `json:"route"`
	Server        string   `json:"server"`
	Authorization string   `json:"authorization"`
	Denied        float64  `json:"unauthorized_per_second"`
	Success       *float64 `json:"success_rate"`
	Rate          float64  `json:"rps"`
	P50           *float64 `json:"p50_ms"`
	P95           *float64 `json:"p95_ms"`
	P99           *float64 `json:"p99_ms"`
}

// decisionsJSON converts rows, with rates per second and latencies in milliseconds.
func decisionsJSON(rows []cluster.Decision) []decision {
	decisions := make([]decision, 0, len(rows))
	for _, r := range rows {
		d := decision{
			Route: r.Route, Server: r.Server, Authorization: r.Authorization,
			Denied: r.Denied / r.Period.Seconds(), Rate: (r.Success + r.Failures) / r.Period.Seconds(),
		}
		// The pointers stay nil without requests, and become null.
		if requests := r.Success + r.Failures; requests > 0 {
			d.Success = new(r.Success / requests)
		}
		for q, target := range map[float64]**float64{0.5: &d.P50, 0.95: &d.P95, 0.99: &d.P99} {
			if latency, ok := r.Quantile(q); ok {
				*target = new(float64(latency) / float64(time.Millisecond))
			}
		}
		decisions = append(decisions, d)
	}
	return decisions
}
