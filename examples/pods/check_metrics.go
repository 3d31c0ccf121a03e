package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// checkMetricsOut verifies that the client's proxy counted all requests.
func (r *running) checkMetricsOut(ctx context.Context) (string, error) {
	return r.counted(ctx, `direction="outbound"`, fmt.Sprintf("server_id=%q", r.web1.identity()), r.client)
}

// checkMetricsIn verifies that the web pods' proxies counted all requests.
func (r *running) checkMetricsIn(ctx context.Context) (string, error) {
	return r.counted(ctx, `direction="inbound"`, fmt.Sprintf("client_id=%q", r.client.identity()), r.web1, r.web2)
}

// counted returns a text with the sum over response_total in the pods' proxies. It includes only
// series with tls="true" and the labels in direction and peer, such as direction="inbound". It
// waits until the sum reaches r.answered, because a proxy may count a response late. It returns
// an error if the sum is larger, or if a response counts as a failure.
func (r *running) counted(ctx context.Context, direction, peer string, pods ...pod) (string, error) {
	// Connections are not reused, so none stays open after a read.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	good := 0
	bad := 0
	err := until(ctx, fmt.Sprintf("%d responses with %s and %s", r.answered, direction, peer), func() (bool, error) {
		// Each attempt counts from the beginning.
		good = 0
		bad = 0
		for _, p := range pods {
			url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(p.addr, adminPort))
			if err := series(ctx, client, url, "response_total{", func(labels string, value int) {
				switch {
				// The series of another direction or peer do not count.
				case !strings.Contains(labels, direction) || !strings.Contains(labels, peer) || !strings.Contains(labels, `tls="true"`):
				case strings.Contains(labels, `classification="success"`):
					good += value
				default:
					bad += value
				}
			}); err != nil {
				return false, err
			}
		}
		return good+bad >= r.answered, nil
	})
	// err may be nil here, and is printed then too.
	if err != nil || bad > 0 || good != r.answered {
		return "", fmt.Errorf("%d good and %d failed responses counted, want %d: %w", good, bad, r.answered, err)
	}
	return fmt.Sprintf("response_total: %d, with %s; none failed", good, peer), nil
}

// series reads the metrics at url and calls visit with the labels and value of each series that
// begins with prefix.
func series(ctx context.Context, client *http.Client, url, prefix string, visit func(labels string, value int)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	rsp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	// Each line is a series, such as NAME{LABELS} VALUE.
	lines := bufio.NewScanner(rsp.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), prefix)
		if !ok {
			continue
		}
		labels, text, _ := strings.Cut(rest, "} ")
		value, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", url, lines.Text(), err)
		}
		visit(labels, value)
	}
	return lines.Err()
}
