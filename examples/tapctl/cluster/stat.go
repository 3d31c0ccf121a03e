package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Traffic holds the sums over the metrics of one resource's proxies, in one period.
type Traffic struct {
	Resource

	Period            time.Duration // longer than requested if proxies do not answer at once
	Meshed, Pods      int           // how many running pods have a proxy, and how many there are
	Success, Failures float64       // responses
	Open              float64       // TCP connections at the end of the period
	Read, Written     float64       // bytes of TCP connections in the period

	latency latencies
}

// latencies is a histogram. A key's value is the number of responses with at most this latency in
// ms.
type latencies map[float64]float64

// Quantile returns the latency that the fraction q of the responses did not exceed. It
// interpolates like Prometheus's histogram_quantile. It returns false without responses.
func (t *Traffic) Quantile(q float64) (time.Duration, bool) { return t.latency.quantile(q) }

// quantile returns the latency that the fraction q of the responses did not exceed, and false without responses.
func (l latencies) quantile(q float64) (time.Duration, bool) {
	// The bucket without an upper bound contains all responses.
	total := l[math.Inf(1)]
	if total == 0 {
		return 0, false
	}
	lower := 0.0
	count := 0.0
	// The buckets are cumulative. The first one that contains enough responses contains the quantile.
	for _, upper := range slices.Sorted(maps.Keys(l)) {
		n := l[upper]
		if n >= q*total && n > count {
			ms := lower
			// Within a bucket, responses are assumed to be spread evenly. The last one has no upper bound.
			if !math.IsInf(upper, 1) {
				ms += (upper - lower) * (q*total - count) / (n - count)
			}
			return time.Duration(ms * float64(time.Millisecond)), true
		}
		lower = upper
		count = n
	}
	return time.Duration(lower * float64(time.Millisecond)), true
}

// Traffic returns the traffic of each resource in the given period, which begins now. This is
// inbound traffic if to is nil, and otherwise each resource's outbound traffic to the resource
// to. Traffic calls warn for each proxy that does not return its metrics at the start or at the
// end, and does not count this proxy's traffic. Traffic to a pod that ends during the period is
// not counted.
func (c *Cluster) Traffic(
	ctx context.Context, resources []Resource, destination *Resource, period time.Duration, warn func(error),
) ([]Traffic, error) {
	resources, err := c.Expand(ctx, resources)
	if err != nil || len(resources) == 0 {
		return nil, err
	}
	m, err := c.measure(ctx, resources, trafficMetrics(), period, warn)
	if err != nil {
		return nil, err
	}
	all := make([]Traffic, 0, len(resources))
	for _, r := range resources {
		t := Traffic{Resource: r, Period: m.period, latency: latencies{}}
		for _, p := range m.pods.OfResource(r) {
			t.Pods++
			if p.Meshed() {
				t.Meshed++
			}
			// A proxy without both readings has no growth to add.
			t.add(m.before[p.key()], m.after[p.key()], destination)
		}
		all = append(all, t)
	}
	return all, ctx.Err()
}

// measurement holds the pods' metrics at the start and at the end of a period.
type measurement struct {
	pods          *Pods // at the end
	period        time.Duration
	before, after map[string]series // by pod
}

// measure reads the named metrics from all of the resources' pods, now and at the end of the
// period. If a proxy does not return them at one of these times, its entries are nil, because its
// counters' growth is unknown, and measure calls warn.
func (c *Cluster) measure(
	ctx context.Context, resources []Resource, names []string, period time.Duration, warn func(error),
) (*measurement, error) {
	pods, err := c.Pods(ctx, resources)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	// Counters are read twice, and their difference is the traffic.
	m := &measurement{before: scrape(ctx, pods.Of, names, warn)}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(period):
	}
	if m.pods, err = c.Pods(ctx, resources); err != nil {
		return nil, err
	}
	// Reading takes time, so the period is measured.
	m.period = time.Since(began)
	m.after = scrape(ctx, m.pods.Of, names, warn)
	// Without a first reading, the growth is not known.
	for pod, first := range m.before {
		if first == nil {
			delete(m.after, pod)
		}
	}
	return m, nil
}

// series holds metric values. A key is a metric's name with its labels, as in Prometheus text.
type series map[string]float64

// trafficMetrics returns the names of the metrics that Traffic uses.
func trafficMetrics() []string {
	return []string{
		"response_total", "response_latency_ms_bucket", "tcp_open_connections", "tcp_read_bytes_total", "tcp_write_bytes_total",
	}
}

// scrape reads the metrics with the given names from all pods with a proxy. If a proxy does not
// return its metrics, scrape calls warn, and the pod's entry in the result is nil.
func scrape(ctx context.Context, pods []Pod, names []string, warn func(error)) map[string]series {
	const atOnce, patience = 20, 5 * time.Second
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	slots := semaphore.NewWeighted(atOnce)
	var mu sync.Mutex
	var running sync.WaitGroup
	all := make(map[string]series, len(pods))
	for _, p := range pods {
		// Acquire fails only if ctx has ended.
		if !p.Meshed() || slots.Acquire(ctx, 1) != nil {
			continue
		}
		running.Go(func() {
			defer slots.Release(1)
			s, err := readMetrics(ctx, &client, p.Metrics, names)
			// warn also needs the lock, because it may not be safe for concurrent use.
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				warn(fmt.Errorf("%s: its metrics: %w", p.Name, err))
				s = nil
			}
			all[p.key()] = s
		})
	}
	running.Wait()
	return all
}

// maxMetrics is the maximum size in bytes of a proxy's metrics. The rest is ignored.
const maxMetrics = 64 << 20

// readMetrics returns the metrics with one of the names from the admin server at addr.
func readMetrics(ctx context.Context, client *http.Client, addr string, names []string) (series, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	rsp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer rsp.Body.Close()
	if rsp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", rsp.StatusCode)
	}
	s := series{}
	lines := bufio.NewScanner(io.LimitReader(rsp.Body, maxMetrics))
	for lines.Scan() {
		// The name ends at the labels, or at the value if there are none.
		name, _, _ := strings.Cut(lines.Text(), "{")
		name, _, _ = strings.Cut(name, " ")
		// Label values may contain braces and spaces, so the labels end at the last brace.
		end := strings.LastIndexByte(lines.Text(), '}')
		if !slices.Contains(names, name) || end < 0 && strings.ContainsRune(lines.Text(), '{') {
			continue
		}
		// The key is the line up to the value.
		end = max(end+1, len(name))
		text, _, _ := strings.Cut(strings.TrimSpace(lines.Text()[end:]), " ") // a time may follow
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			s[lines.Text()[:end]] = value
		}
	}
	return s, lines.Err()
}

// add adds one proxy's traffic between two readings of its metrics, and its open connections at
// the second one. If destination is not nil, only traffic to this resource counts.
func (t *Traffic) add(previous, current series, destination *Resource) {
	for s := range current.since(previous) {
		if !counts(s.labels, destination) {
			continue
		}
		// The order matters: the first three count requests, and the others connections, of which only one side
		// counts.
		switch {
		case s.name == "response_total" && s.labels["classification"] == "success":
			t.Success += s.grown
		case s.name == "response_total":
			t.Failures += s.grown
		case s.name == "response_latency_ms_bucket":
			if bound, err := strconv.ParseFloat(s.labels["le"], 64); err == nil {
				t.latency[bound] += s.grown
			}
		case s.labels["peer"] != peerOf(destination): // not counted: connections on the proxy's other side
		case s.name == "tcp_open_connections":
			t.Open += s.value
		case s.name == "tcp_read_bytes_total":
			t.Read += s.grown
		case s.name == "tcp_write_bytes_total":
			t.Written += s.grown
		}
	}
}

// sample is a metric's value at the end of a period, and its growth in the period.
type sample struct {
	name         string
	labels       map[string]string
	value, grown float64
}

// since yields how each metric in s has changed from previous. A counter that got smaller was
// reset to 0 in between, so its value is its growth.
func (s series) since(previous series) iter.Seq[sample] {
	return func(yield func(sample) bool) {
		for key, value := range s {
			name, text, _ := strings.Cut(key, "{")
			labels, err := parseLabels(text)
			if err != nil {
				continue
			}
			// Growth and value are the same for a counter that is new or was reset.
			current := sample{name, labels, value, value}
			if value >= previous[key] {
				current.grown -= previous[key]
			}
			if !yield(current) {
				return
			}
		}
	}
}

// peerOf returns the value of the label peer of the connections that Traffic counts. For inbound
// traffic, with nil as the destination, the value is "src", for connections from clients.
// Otherwise it is "dst", for connections to endpoints.
func peerOf(destination *Resource) string {
	if destination == nil {
		return "src"
	}
	return "dst"
}

// counts reports whether Traffic counts a metric with the given labels. With nil as the
// destination, only inbound traffic counts. Otherwise only outbound traffic to this destination
// counts.
func counts(labels map[string]string, destination *Resource) bool {
	if destination == nil {
		return labels["direction"] == "inbound"
	}
	return labels["direction"] == "outbound" && labels["dst_"+destination.Label()] == destination.Name &&
		(destination.Namespace == "" || labels["dst_namespace"] == destination.Namespace)
}

// errLabels is the error of a line that is no Prometheus text.
var errLabels = errors.New("labels must be name=\"value\" pairs in braces")

// parseLabels parses labels in Prometheus text after the opening brace.
func parseLabels(text string) (map[string]string, error) {
	all := map[string]string{}
	for text != "" && text[0] != '}' {
		name, rest, ok := strings.Cut(text, "=")
		// Values are quoted as Go quotes strings.
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return nil, errLabels
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, errLabels
		}
		all[strings.TrimSpace(name)] = value
		// The comma after the last label is optional.
		text = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	return all, nil
}
