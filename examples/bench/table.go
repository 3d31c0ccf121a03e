package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// print writes the results as Markdown, with a table for each protocol and rate. args are the
// command's arguments.
func (b *bench) print(w io.Writer, args string) {
	b.printHead(w, args)
	fmt.Fprintln(w, "Memory is the resident memory of the proxy process after the load.")
	for _, l := range b.loops {
		b.table(w, l)
	}
}

// printHead writes the date, the machine, the command and the settings.
func (b *bench) printHead(w io.Writer, args string) {
	fmt.Fprintf(w, "%s, %s, %d CPUs, %s/%s, %s, `%s`. ", time.Now().UTC().Format(time.DateOnly), processor(),
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), strings.TrimSpace("go run ./examples/bench "+args))
	fmt.Fprintf(w, "Medians of %d interleaved rounds of %v. CPU and allocations are those of the proxy process for each request. ",
		b.rounds, b.duration)
	fmt.Fprintf(w, "CPUs of the proxy: %v; of load generator and backend: %v.\n", b.proxyCPUs, b.otherCPUs)
}

// table writes the results for one load. Some columns compare each target with a base, such as "relay".
func (b *bench) table(w io.Writer, l loop) {
	title := fmt.Sprintf("%d requests at once", atOnce)
	if l.rate > 0 {
		title = fmt.Sprintf("%d requests/s, latency from the time a request was due", l.rate)
	}
	protocol := map[string]string{
		http1Protocol: "HTTP/1.1", grpcProtocol: "Unary gRPC by cleartext HTTP/2",
		downloadProtocol: "HTTP/1.1 responses of 1 MiB", uploadProtocol: "HTTP/1.1 requests of 1 MiB",
		grpcDownloadProtocol: "gRPC responses of 1 MiB by cleartext HTTP/2",
		grpcUploadProtocol:   "gRPC requests of 1 MiB by cleartext HTTP/2",
		clientProtocol:       "Clients of HTTP/1.1",
	}[l.protocol]
	columns := []string{"proxy", "CPU µs (minimum)"}
	var rows, bases []target
	for _, t := range b.targets {
		// The target was not measured with this load.
		if len(t.samples[l]) == 0 {
			continue
		}
		rows = append(rows, t)
		// Clients are compared with the first one. Proxies are compared with the cheapest and the usual ones.
		if t.sends && len(bases) == 0 || t.name == "relay" || t.name == "ReverseProxy" || strings.HasPrefix(t.name, "haproxy") {
			bases = append(bases, t)
			columns = append(columns, "× "+t.name)
		}
	}
	// The latency is compared with that of the first row.
	columns = append(columns, "p99 µs", "× "+rows[0].name, "requests/s", "CPU busy", "memory MiB", "allocations")
	fmt.Fprintf(w, "\n%s, %s:\n\n| %s |\n|---|%s\n", protocol, title, strings.Join(columns, " | "), strings.Repeat("--:|", len(columns)-1))
	for _, t := range rows {
		median := func(f func(sample) float64) float64 { return t.quantile(l, f, 0.5) }
		// The quantile 0 is the minimum.
		fmt.Fprintf(w, "| %s | %.1f (%.1f) |", t.name, median(cpu), t.quantile(l, cpu, 0))
		for _, base := range bases {
			fmt.Fprintf(w, " %.2f |", median(cpu)/base.quantile(l, cpu, 0.5))
		}
		fmt.Fprintf(w, " %.0f | %.2f | %.0f | %.0f %% | %.1f |", median(p99), median(p99)/rows[0].quantile(l, p99, 0.5),
			median(rate), 100*median(func(s sample) float64 { return s.busy }), median(func(s sample) float64 { return s.resident }))
		// The allocations of other projects' programs are not known.
		if t.isRole {
			fmt.Fprintf(w, " %.1f |\n", median(func(s sample) float64 { return s.allocations }))
		} else {
			fmt.Fprintln(w, " – |")
		}
	}
}

// cpu, p99 and rate select one figure of a sample each, as quantile needs it.
func cpu(s sample) float64  { return s.cpu }
func p99(s sample) float64  { return s.p99 }
func rate(s sample) float64 { return s.rate }

// quantile returns the quantile q, from 0 to 1, of figure's results for the samples with the load
// l.
func (t target) quantile(l loop, figure func(sample) float64, q float64) float64 {
	v := make([]float64, 0, len(t.samples[l]))
	for _, s := range t.samples[l] {
		v = append(v, figure(s))
	}
	return quantile(v, q)
}

// quantile returns the quantile q, from 0 to 1, of v.
func quantile[T cmp.Ordered](v []T, q float64) T {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[int(q*float64(len(v)-1)+0.5)]
}
