package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// runAsApp runs a program in the pod p as the user of the applications, and returns its
// output.
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
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", "--max-time", "30", "--parallel", "--parallel-max", "10", url)
	if err != nil {
		return "", err
	}
	return balanced(lines(out), requests, r.web.pods, func(line string) (pod string, ok bool) {
		pod, uri, _ := strings.Cut(line, " ")
		return pod, strings.HasPrefix(uri, "/") && strings.HasSuffix(uri, "?"+encryptedMarker)
	})
}

// checkBodies verifies that requests with bodies succeed and are balanced.
func (r *running) checkBodies(ctx context.Context) (string, error) {
	out, err := r.runAsApp(ctx, r.client, r.bin("app"), "post", "http://"+r.api.String()+"/", strconv.Itoa(requests), encryptedMarker)
	if err != nil {
		return "", err
	}
	figure, err := balanced(lines(out), requests, r.api.pods, func(line string) (pod string, ok bool) {
		pod, _, _ = strings.Cut(line, " ")
		return pod, true
	})
	return figure + ", 64 KiB each way", err
}

// checkClientID verifies that the proxies replace a forged header l5d-client-id by the
// identity of the client.
func (r *running) checkClientID(ctx context.Context) (string, error) {
	out, err := r.runAsApp(ctx, r.client, r.bin("app"), "post", "http://"+r.api.String()+"/", strconv.Itoa(forged), encryptedMarker)
	if err != nil {
		return "", err
	}
	for _, line := range lines(out) {
		if _, id, _ := strings.Cut(line, " "); id != r.client.identity() {
			return "", fmt.Errorf("the server received client id %q, want %s", id, r.client.identity())
		}
	}
	return "l5d-client-id: " + r.client.identity() + ", although the client sent another one", nil
}

// checkGRPC verifies that calls of all four kinds succeed and are balanced, on one
// connection of the client.
func (r *running) checkGRPC(ctx context.Context) (string, error) {
	const calls = requests / 4
	out, err := r.runAsApp(ctx, r.client, r.bin("app"), "call", r.echo.String(), strconv.Itoa(calls), encryptedMarker)
	if err != nil {
		return "", err
	}
	all := lines(out)
	if len(all) != 4*calls {
		return "", fmt.Errorf("%d responses to %d calls", len(all), 4*calls)
	}
	all = slices.DeleteFunc(all, func(line string) bool { return line == "input ?" })
	figure, err := balanced(all, 3*calls, r.echo.pods, func(line string) (pod string, ok bool) {
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
	if want := r.web1.name + " /?" + cleartextMarker + "\n"; out != want {
		return "", fmt.Errorf("%q, not %q", out, want)
	}
	return "200, which is the default policy (all-unauthenticated)", nil
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

// balanced returns a text with the number of requests that each pod served. It counts the lines
// in answers. The function good returns the pod of a line, and whether the line is valid.
// balanced returns an error if a line is not valid, or if the number of lines is not want. It
// also returns an error if a pod served less than a tenth of the requests.
func balanced(answers []string, want int, pods []pod, good func(line string) (pod string, ok bool)) (string, error) {
	count := map[string]int{}
	for _, line := range answers {
		pod, ok := good(line)
		if !ok {
			return "", fmt.Errorf("invalid response %q", line)
		}
		count[pod]++
	}
	if len(answers) != want {
		return "", fmt.Errorf("%d responses to %d requests", len(answers), want)
	}
	var shares []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		shares = append(shares, fmt.Sprintf("%s %d", name, count[name]))
	}
	figure := fmt.Sprintf("%d of %d answered: %s", want, want, strings.Join(shares, ", "))
	for _, p := range pods {
		if count[p.name] < want/10 {
			return "", fmt.Errorf("%s: too few from %s", figure, p.name)
		}
	}
	return figure, nil
}
