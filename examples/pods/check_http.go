package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// runAsApp runs a program in the pod p as the applications' user, and returns its output.
func (r *running) runAsApp(ctx context.Context, p pod, argv ...string) (string, error) {
	return output(command(ctx, p, app, nil, argv...))
}

// The numbers of requests that checks send. checkClientID uses the constant forged, and
// checkPodAddress uses the constant direct. Several other checks use the constant requests.
const (
	requests = 200
	forged   = 20
	direct   = 20
)

// checkNginx verifies that requests of curl succeed and are balanced. It sends ten at a
// time, because the balancer may send sequential requests to the same pod.
func (r *running) checkNginx(ctx context.Context) (string, error) {
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.web.host(), requests, encryptedMarker)
	argv := []string{"curl", "-sS", "--fail", "--parallel", "--parallel-max", "10", url}
	return r.balance(ctx, r.web, argv, func(line string) (pod string, ok bool) {
		pod, uri, _ := strings.Cut(line, " ")
		return pod, strings.HasPrefix(uri, "/") && strings.HasSuffix(uri, "?"+encryptedMarker)
	})
}

// checkShared verifies that requests in HTTP/1.1 share connections between the proxies, because they
// are sent over HTTP/2. Without this, each concurrent request would need its own connection.
func (r *running) checkShared(ctx context.Context) (string, error) {
	// perPod is how many connections the client's proxy may open to each pod.
	const concurrent, perPod = 100, 3
	// opened returns how many connections the client's proxy has opened to the pods of web so far. They
	// share an identity.
	opened := func() (int, error) {
		return r.clientSeries(ctx, "tcp_open_total{", `direction="outbound"`, `peer="dst"`, fmt.Sprintf("server_id=%q", r.web1.identity()))
	}
	connsBefore, err := opened()
	if err != nil {
		return "", err
	}
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.web.host(), concurrent, encryptedMarker)
	// --parallel-immediate makes curl open a connection for each request at once.
	if _, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", "--parallel", "--parallel-immediate", "--parallel-max",
		strconv.Itoa(concurrent), url); err != nil {
		return "", err
	}
	// answered counts all requests, and checkMetricsOut compares it with the metrics.
	r.answered += concurrent
	connsAfter, err := opened()
	if n := connsAfter - connsBefore; err == nil && n > perPod*len(r.web.pods) {
		err = fmt.Errorf("%d new connections for %d requests, at most %d for each pod", n, concurrent, perPod)
	}
	return fmt.Sprintf("%d answered, %d new connections", concurrent, connsAfter-connsBefore), err
}

// checkBodies verifies that requests with bodies succeed and are balanced.
func (r *running) checkBodies(ctx context.Context) (string, error) {
	argv := []string{r.bin("app"), "post", "http://" + r.api.String() + "/", strconv.Itoa(requests), encryptedMarker}
	figure, err := r.balance(ctx, r.api, argv, func(line string) (pod string, ok bool) {
		pod, _, _ = strings.Cut(line, " ")
		return pod, true
	})
	return figure + ", 64 KiB each way", err
}

// checkClientID verifies that the proxies replace a forged header l5d-client-id by the client's
// identity.
func (r *running) checkClientID(ctx context.Context) (string, error) {
	out, err := r.runAsApp(ctx, r.client, r.bin("app"), "post", "http://"+r.api.String()+"/", strconv.Itoa(forged), encryptedMarker)
	if err != nil {
		return "", err
	}
	r.answered += forged
	for _, line := range lines(out) {
		if _, id, _ := strings.Cut(line, " "); id != r.client.identity() {
			return "", fmt.Errorf("the server received client id %q, want %s", id, r.client.identity())
		}
	}
	return "l5d-client-id: " + r.client.identity() + ", although the client sent another one", nil
}

// checkGRPC verifies that all four kinds of calls succeed and are balanced, over one connection
// from the client.
func (r *running) checkGRPC(ctx context.Context) (string, error) {
	// There are four kinds of calls, so each is sent requests/4 times.
	argv := []string{r.bin("app"), "call", r.echo.String(), strconv.Itoa(requests / 4), encryptedMarker}
	figure, err := r.balance(ctx, r.echo, argv, func(line string) (pod string, ok bool) {
		_, pod, ok = strings.Cut(line, " ")
		return pod, ok
	})
	return figure + ", on one connection", err
}

// checkPodAddress verifies that requests to the address of a pod reach this pod only.
func (r *running) checkPodAddress(ctx context.Context) (string, error) {
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.web2.addr, direct, encryptedMarker)
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", "--max-time", "30", url)
	if err != nil {
		return "", err
	}
	// answered counts all requests, and checkMetricsOut compares it with the metrics.
	r.answered += direct
	for _, line := range lines(out) {
		if !strings.HasPrefix(line, r.web2.name+" ") {
			return "", fmt.Errorf("%s: %q", url, line)
		}
	}
	if n := len(lines(out)); n != direct {
		return "", fmt.Errorf("%s: %d responses to %d requests", url, n, direct)
	}
	return fmt.Sprintf("%d of %d answered, all by %s", direct, direct, r.web2.name), nil
}

// checkUnmeshed verifies that a request from a pod without a proxy succeeds, because the
// default policy allows it.
func (r *running) checkUnmeshed(ctx context.Context) (string, error) {
	url := fmt.Sprintf("http://%s/?%s", r.web1.addr, cleartextMarker)
	out, err := r.runAsApp(ctx, r.unmeshedClient, "curl", "-sS", "--fail", "--max-time", "30", url)
	if err != nil {
		return "", err
	}
	// The response consists of the pod and the URI.
	if want := r.web1.name + " /?" + cleartextMarker + "\n"; out != want {
		return "", fmt.Errorf("%q, not %q", out, want)
	}
	return "200, which is the default policy (all-unauthenticated)", nil
}

// lines returns text's lines, without an empty last one.
func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

// balance runs a program that sends a number of requests, the constant requests, to the service s
// and prints a line for each. It repeats this until each pod has served a request. It does not
// ask for equal shares: if a busy machine delays one response for a second, the balancer rightly
// prefers the other pod for the next half minute. balance returns a text that tells how many
// requests each pod served. good returns a line's pod, and whether the line is valid.
func (r *running) balance(ctx context.Context, s service, argv []string, good func(line string) (pod string, ok bool)) (string, error) {
	total := 0
	count := map[string]int{}
	err := until(ctx, "requests for all pods of "+s.name, func() (bool, error) {
		out, err := r.runAsApp(ctx, r.client, argv...)
		if err != nil {
			return false, err
		}
		// There is a line for each response.
		answers := lines(out)
		for _, line := range answers {
			pod, ok := good(line)
			if !ok {
				return false, fmt.Errorf("invalid response %q", line)
			}
			if pod != "?" { // the response to a call with streaming requests only does not name it
				count[pod]++
			}
		}
		if len(answers) != requests {
			return false, fmt.Errorf("%d responses to %d requests", len(answers), requests)
		}
		r.answered += requests
		total += requests
		return !slices.ContainsFunc(s.pods, func(p pod) bool { return count[p.name] == 0 }), nil
	})
	// The shares are sorted, so that the figure does not depend on the map's order.
	shares := make([]string, 0, len(count))
	for _, name := range slices.Sorted(maps.Keys(count)) {
		shares = append(shares, fmt.Sprintf("%s %d", name, count[name]))
	}
	figure := fmt.Sprintf("%d of %d answered: %s", total, total, strings.Join(shares, ", "))
	if err != nil {
		return "", fmt.Errorf("%s: %w", figure, err)
	}
	return figure, nil
}
