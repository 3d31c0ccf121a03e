package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap/tappb"
)

// statCommand is "tapctl stat". It counts requests for some time, and prints one table with
// a row for each destination.
type statCommand struct {
	filter   filter
	output   string
	duration time.Duration
}

// flags defines the flags in f.
func (c *statCommand) flags(f *flag.FlagSet) {
	c.filter.flags(f)
	f.StringVar(&c.output, "o", "", "`format`: json; in a cluster also wide, with bytes")
	f.DurationVar(&c.duration, "for", 10*time.Second,
		"`time` to count")
}

// check returns an error for a wrong flag. In a cluster, where the numbers come from metrics, it also
// rejects conditions that select single requests.
func (c *statCommand) check() error {
	// wide is only known in a cluster, where metrics count bytes.
	switch wide := c.output == "wide" && c.filter.pods != nil; {
	case c.output != "" && c.output != "json" && !wide:
		return fmt.Errorf("-o %s: no such format; there is json, and in a cluster wide", c.output)
	case c.filter.pods != nil && c.filter.perRequest():
		return errors.New("stat in a cluster reads metrics: must have no condition but --to, --to-namespace and --from")
	}
	if c.duration <= 0 {
		return noTime("--for", c.duration)
	}
	return c.filter.check()
}

func (c *statCommand) useCluster(p *pods) error { return c.filter.useCluster(p) }

// run counts requests for c.duration, and prints them by destination.
func (c *statCommand) run(ctx context.Context, term terminal) error {
	if term.pods != nil {
		return c.runCluster(ctx, term)
	}
	config, err := c.filter.config(term)
	if err != nil {
		return err
	}
	closeAll, err := watched(ctx, term, &config, "counts of requests")
	if err != nil {
		return err
	}
	defer closeAll()
	// One row for each destination, instead of one for each path.
	config.Request.ByDestination = true
	ctx, cancel := bounded(ctx, c.duration)
	defer cancel()
	began := time.Now()
	rows, err := top.Collect(ctx, config)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		// Even an empty result is valid JSON.
		return writeStatJSON(term.out, rows)
	case len(rows) == 0:
		noRequest(term, spent(ctx, began, c.duration))
		return nil
	}
	return writeStat(term.out, rows)
}

// writeStat writes rows as a table. Quantiles of a row without a response are "-".
func writeStat(out io.Writer, rows []*tappb.Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DESTINATION\tDIRECTION\tSUCCESS\tRPS\tP50\tP95\tP99\tOPEN\tREQUESTS")
	for _, r := range rows {
		// took formats a latency, or "-" if no request has ended.
		took := func(d time.Duration) string {
			if r.GetCount() == 0 {
				return "-"
			}
			return text.Duration(d)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n",
			// Without a destination, rows of linkerd's tap have their path.
			text.Clean(cmp.Or(r.GetDestination(), r.GetPath(), "?")), strings.ToLower(r.GetDirection().String()),
			text.Percent(r.GetSuccesses(), r.GetCount()), text.Rate(r.GetRate()),
			took(r.GetP50().AsDuration()), took(r.GetP95().AsDuration()), took(r.GetP99().AsDuration()),
			r.GetOpen(), text.Count(r.GetCount()))
	}
	return w.Flush()
}

// stat is a row of the table in JSON.
type stat struct {
	Destination string   `json:"destination"`
	Direction   string   `json:"direction"`
	Requests    uint64   `json:"requests"`
	SuccessRate *float64 `json:"success_rate"` // null if no request has ended
	Rate        float64  `json:"rps"`
	P50         float64  `json:"p50_ms"`
	P95         float64  `json:"p95_ms"`
	P99         float64  `json:"p99_ms"`
	Open        uint64   `json:"open"`
}

// writeStatJSON writes rows as a JSON array of stats.
func writeStatJSON(out io.Writer, rows []*tappb.Row) error {
	// ms converts d to milliseconds with three decimals.
	ms := func(d time.Duration) float64 { return float64(d.Round(time.Microsecond).Microseconds()) / 1000 }
	stats := make([]stat, 0, len(rows))
	for _, r := range rows {
		s := stat{
			Destination: cmp.Or(r.GetDestination(), r.GetPath()), Direction: strings.ToLower(r.GetDirection().String()),
			Requests: r.GetCount(), Rate: r.GetRate(), Open: r.GetOpen(),
			P50: ms(r.GetP50().AsDuration()), P95: ms(r.GetP95().AsDuration()), P99: ms(r.GetP99().AsDuration()),
		}
		// The pointer stays nil without responses, and becomes null.
		if r.GetCount() > 0 {
			s.SuccessRate = new(float64(r.GetSuccesses()) / float64(r.GetCount()))
		}
		stats = append(stats, s)
	}
	return text.WriteJSON(out, stats)
}
