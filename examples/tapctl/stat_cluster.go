package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/examples/tapctl/text"
)

// runCluster prints resources' traffic in a cluster, from their proxies' metrics.
func (c *statCommand) runCluster(ctx context.Context, term terminal) error {
	destination := c.filter.destination
	rows, err := term.pods.Cluster.Traffic(ctx, term.pods.Resources, destination, c.duration, warner(term.err))
	if c.filter.from != "" && len(rows) == 1 {
		rows[0].Resource = *destination // the metrics of the clients count its requests
	}
	// The order matters: if ctx has ended, the error is only its consequence.
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case len(rows) == 0:
		_, err := fmt.Fprintln(term.err, "tapctl: no such resources")
		return err
	case c.output == "json":
		return text.WriteJSON(term.out, trafficJSON(rows))
	}
	return writeTraffic(term.out, rows, c.output == "wide")
}

// writeTraffic writes a table with the columns of "linkerd viz stat". The column NAMESPACE is
// left out if all resources are in the same namespace.
func writeTraffic(out io.Writer, rows []cluster.Traffic, wide bool) error {
	// several tells whether the column NAMESPACE is needed.
	several := false
	for _, r := range rows {
		several = several || r.Namespace != rows[0].Namespace
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "NAME\tMESHED\tSUCCESS\tRPS\tLATENCY_P50\tLATENCY_P95\tLATENCY_P99\tTCP_CONN"
	if wide {
		head += "\tREAD_BYTES/SEC\tWRITE_BYTES/SEC"
	}
	if several {
		head = "NAMESPACE\t" + head
	}
	fmt.Fprintln(w, head)
	for _, r := range rows {
		requests := r.Success + r.Failures
		cells := []string{r.String(), fmt.Sprintf("%d/%d", r.Meshed, r.Pods)}
		// Without requests, rates and latencies have no meaning.
		if requests == 0 {
			cells = append(cells, "-", "-", "-", "-", "-")
		} else {
			cells = append(cells, text.Percent(uint64(r.Success), uint64(requests)), text.Rate(requests/r.Period.Seconds()))
			for _, q := range []float64{0.5, 0.95, 0.99} {
				cells = append(cells, quantile(&r, q))
			}
		}
		cells = append(cells, strconv.FormatFloat(r.Open, 'f', 0, 64))
		if wide {
			cells = append(cells, bytesPerSecond(r.Read, r.Period), bytesPerSecond(r.Written, r.Period))
		}
		if several {
			cells = append([]string{r.Namespace}, cells...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// quantile returns the latency that a share q of the requests did not exceed, or "-" if there were none.
func quantile(r *cluster.Traffic, q float64) string {
	d, ok := r.Quantile(q)
	if !ok {
		return "-"
	}
	return text.Duration(d)
}

func bytesPerSecond(n float64, period time.Duration) string {
	return text.Bytes(uint64(n/period.Seconds())) + "/s"
}

// traffic is a row of the table in JSON. A value is null if there was no request.
type traffic struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Meshed    int      `json:"meshed"`
	Pods      int      `json:"pods"`
	Success   *float64 `json:"success_rate"`
	Rate      float64  `json:"rps"`
	P50       *float64 `json:"p50_ms"`
	P95       *float64 `json:"p95_ms"`
	P99       *float64 `json:"p99_ms"`
	Open      float64  `json:"tcp_connections"`
	Read      float64  `json:"read_bytes_per_second"`
	Written   float64  `json:"write_bytes_per_second"`
}

// trafficJSON converts rows, with rates per second and latencies in milliseconds.
func trafficJSON(rows []cluster.Traffic) []traffic {
	traffics := make([]traffic, 0, len(rows))
	for _, r := range rows {
		t := traffic{
			Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Meshed: r.Meshed, Pods: r.Pods, Open: r.Open,
			Rate: (r.Success + r.Failures) / r.Period.Seconds(), Read: r.Read / r.Period.Seconds(), Written: r.Written / r.Period.Seconds(),
		}
		// The pointers stay nil without requests, and become null.
		if requests := r.Success + r.Failures; requests > 0 {
			t.Success = new(r.Success / requests)
		}
		for q, field := range map[float64]**float64{0.5: &t.P50, 0.95: &t.P95, 0.99: &t.P99} {
			if d, ok := r.Quantile(q); ok {
				*field = new(float64(d) / float64(time.Millisecond))
			}
		}
		traffics = append(traffics, t)
	}
	return traffics
}
