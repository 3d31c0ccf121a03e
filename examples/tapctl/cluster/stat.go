package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// Traffic has the sums of the metrics of all proxies of one resource, over one period.
type Traffic struct {
	Resource

	Period            time.Duration // longer than requested if proxies do not answer at once
	Meshed, Pods      int           // the number of running pods with a proxy, and of all running pods
	Success, Failures float64       // responses
	Open              float64       // TCP connections at the end of the period
	Read, Written     float64       // bytes of TCP connections in the period

	latency map[float64]float64 // number of responses with at most this latency in ms
}

// Quantile returns the latency that the fraction q of the responses did not exceed. It
// interpolates as the function histogram_quantile of Prometheus does. It returns false
// without responses.
func (t *Traffic) Quantile(q float64) (time.Duration, bool) {
	total := t.latency[math.Inf(1)]
	if total == 0 {
		return 0, false
	}
	lower, below := 0.0, 0.0
	for _, upper := range slices.Sorted(maps.Keys(t.latency)) {
		n := t.latency[upper]
		if n >= q*total && n > below {
			ms := lower
			if !math.IsInf(upper, 1) {
				ms += (upper - lower) * (q*total - below) / (n - below)
			}
			return time.Duration(ms * float64(time.Millisecond)), true
		}
		lower, below = upper, n
	}
	return time.Duration(lower * float64(time.Millisecond)), true
}

// Traffic returns the traffic of each resource in the given period, which begins now. This is
// inbound traffic if the parameter to is nil. Otherwise it is the outbound traffic of each
// resource to the resource in this parameter. Traffic calls warn for each proxy that does not
// return its metrics at the start or at the end, and does not count the traffic of this proxy.
// Traffic of a pod that ends during the period is not counted.
func (c *Cluster) Traffic(
	ctx context.Context, resources []Resource, to *Resource, period time.Duration, warn func(error),
) ([]Traffic, error) {
	resources, err := c.Expand(ctx, resources)
	if err != nil || len(resources) == 0 {
		return nil, err
	}
	pods, err := c.Pods(ctx, resources)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	before := scrape(ctx, pods.Of, warn)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(period):
	}
	if pods, err = c.Pods(ctx, resources); err != nil {
		return nil, err
	}
	period = time.Since(began)
	after := scrape(ctx, pods.Of, warn)
	all := make([]Traffic, 0, len(resources))
	for _, r := range resources {
		t := Traffic{Resource: r, Period: period, latency: map[float64]float64{}}
		for _, p := range pods.OfResource(r) {
			t.Pods++
			if p.Meshed() {
				t.Meshed++
			}
			if first, present := before[p.key()]; first != nil || !present { // otherwise the growth is unknown
				t.add(first, after[p.key()], to)
			}
		}
		all = append(all, t)
	}
	return all, ctx.Err()
}

// series has the values of metrics. A key is the name of a metric with its labels, as in
// Prometheus text.
type series map[string]float64

// trafficMetrics returns the names of the metrics that Traffic uses.
func trafficMetrics() []string {
	return []string{
		"response_total", "response_latency_ms_bucket", "tcp_open_connections", "tcp_read_bytes_total", "tcp_write_bytes_total",
	}
}

// scrape reads the metrics of all pods with a proxy. If a proxy does not return its
// metrics, scrape calls warn, and the entry of the pod in the result is nil.
func scrape(ctx context.Context, pods []Pod, warn func(error)) map[string]series {
	const atOnce, patience = 20, 5 * time.Second
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	slots, names := semaphore.NewWeighted(atOnce), trafficMetrics()
	var mu sync.Mutex
	var running sync.WaitGroup
	all := make(map[string]series, len(pods))
	for _, p := range pods {
		if !p.Meshed() || slots.Acquire(ctx, 1) != nil {
			continue
		}
		running.Go(func() {
			defer slots.Release(1)
			s, err := readMetrics(ctx, &client, p.Metrics, names)
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

// maxMetrics is the maximum size in bytes of the metrics of a proxy. The rest is ignored.
const maxMetrics = 64 << 20

// readMetrics returns those metrics of the admin server at addr that have one of the names.
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
		name, _, _ := strings.Cut(lines.Text(), "{")
		name, _, _ = strings.Cut(name, " ")
		end := strings.LastIndexByte(lines.Text(), '}')
		if !slices.Contains(names, name) || end < 0 && strings.ContainsRune(lines.Text(), '{') {
			continue
		}
		end = max(end+1, len(name))
		text, _, _ := strings.Cut(strings.TrimSpace(lines.Text()[end:]), " ") // a time may follow
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			s[lines.Text()[:end]] = value
		}
	}
	return s, lines.Err()
}

// add adds the traffic of one proxy in the period, and its open connections at the end, to t. The
// arguments before and after have the metrics of the proxy at the start and at the end. If to is
// not nil, only traffic to this resource counts. If a counter is smaller at the end, it has started
// again at 0, and its value at the end is added.
func (t *Traffic) add(before, after series, to *Resource) {
	for key, value := range after {
		name, text, _ := strings.Cut(key, "{")
		labels, err := parseLabels(text)
		if err != nil || !counts(labels, to) {
			continue
		}
		grown := value
		if value >= before[key] {
			grown -= before[key]
		}
		switch {
		case name == "response_total" && labels["classification"] == "success":
			t.Success += grown
		case name == "response_total":
			t.Failures += grown
		case name == "response_latency_ms_bucket":
			if le, err := strconv.ParseFloat(labels["le"], 64); err == nil {
				t.latency[le] += grown
			}
		case labels["peer"] != peerOf(to):
		case name == "tcp_open_connections":
			t.Open += value
		case name == "tcp_read_bytes_total":
			t.Read += grown
		case name == "tcp_write_bytes_total":
			t.Written += grown
		}
	}
}

// peerOf returns the value of the label peer of the connections that Traffic counts. For inbound
// traffic, with nil as the destination, the value is "src", for connections from clients.
// Otherwise it is "dst", for connections to endpoints.
func peerOf(to *Resource) string {
	if to == nil {
		return "src"
	}
	return "dst"
}

// counts reports whether Traffic counts a metric with the given labels. With nil as the
// destination, only inbound traffic counts. Otherwise only outbound traffic to this destination
// counts.
func counts(labels map[string]string, to *Resource) bool {
	if to == nil {
		return labels["direction"] == "inbound"
	}
	return labels["direction"] == "outbound" && labels["dst_"+to.Label()] == to.Name &&
		(to.Namespace == "" || labels["dst_namespace"] == to.Namespace)
}

var errLabels = errors.New("labels must be name=\"value\" pairs in braces")

// parseLabels parses labels in Prometheus text after the opening brace.
func parseLabels(text string) (map[string]string, error) {
	all := map[string]string{}
	for text != "" && text[0] != '}' {
		name, rest, ok := strings.Cut(text, "=")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return nil, errLabels
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, errLabels
		}
		all[strings.TrimSpace(name)] = value
		text = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	return all, nil
}
