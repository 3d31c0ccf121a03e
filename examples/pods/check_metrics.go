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

// answered is the number of requests that the checks before checkMetricsOut have sent to the two
// web pods.
const answered = requests + requests + forged + requests + direct

// checkMetricsOut verifies that the proxy of the client has counted all requests.
func (r *running) checkMetricsOut(ctx context.Context) (string, error) {
	return counted(ctx, `direction="outbound"`, fmt.Sprintf("server_id=%q", r.web1.identity()), r.client)
}

// checkMetricsIn verifies that the proxies of the web pods have counted all requests.
func (r *running) checkMetricsIn(ctx context.Context) (string, error) {
	return counted(ctx, `direction="inbound"`, fmt.Sprintf("client_id=%q", r.client.identity()), r.web1, r.web2)
}

// counted returns a text with the sum of the counter response_total of the pods' proxies. It
// includes only series with tls="true" and the labels in direction and peer, such as
// direction="inbound". It waits until the sum reaches [answered], because a proxy may count a
// response late. It returns an error if the sum is larger, or if a response counts as a failure.
func counted(ctx context.Context, direction, peer string, pods ...pod) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	good, bad := 0, 0
	err := until(ctx, fmt.Sprintf("%d responses with %s and %s", answered, direction, peer), func() (bool, error) {
		good, bad = 0, 0
		for _, p := range pods {
			url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(p.addr, adminPort))
			if err := series(ctx, client, url, "response_total{", func(labels string, value int) {
				switch {
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
		return good+bad >= answered, nil
	})
	if err != nil || bad > 0 || good != answered {
		return "", fmt.Errorf("%d good and %d failed responses counted, want %d: %w", good, bad, answered, err)
	}
	return fmt.Sprintf("response_total: %d, with %s; none failed", good, peer), nil
}

// series reads the metrics at url, and calls a function for each series that begins with prefix.
// This function, the argument each, gets the labels and the value of the series.
func series(ctx context.Context, client *http.Client, url, prefix string, each func(labels string, value int)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	rsp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
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
		each(labels, value)
	}
	return lines.Err()
}
