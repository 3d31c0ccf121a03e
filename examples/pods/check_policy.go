package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gotower/gotower/layer"
)

// checkDeniedRequest sends a request from a pod without a proxy to the service api, which permits
// only the service account client. It verifies that the status is 403, and that the metrics of
// the proxy include the denial. Tap and the request's explanation must also show it, unless the
// proxy is foreign.
func (r *running) checkDeniedRequest(ctx context.Context) (string, error) {
	// The pod's own address, because a pod without a proxy cannot reach a service's address.
	url := "http://" + netip.AddrPortFrom(r.web1.addr, r.api.addr.Port()).String() + "/"
	out, err := r.runAsApp(ctx, r.unmeshedClient, "curl", "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", url)
	if err != nil {
		return "", err
	}
	if out != "403" {
		return "", fmt.Errorf("status %s, not 403", out)
	}
	server := r.api.serverName(r.web1)
	n, err := denials(ctx, r.web1, "inbound_http_authz_deny_total{", server)
	// A foreign proxy, such as linkerd's, has no explanations.
	if err != nil || r.isForeign(r.web1) {
		return fmt.Sprintf("403; inbound_http_authz_deny_total: %d", n), err
	}
	// The first request was not tapped, so another one is sent.
	init, explanation, err := r.explained(ctx, r.web1, "/denied", func() {
		_, _ = r.runAsApp(ctx, r.unmeshedClient, "curl", "-sS", "--max-time", "30", url+"denied")
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("403; inbound_http_authz_deny_total: %d; in tap and its explanation", n), errors.Join(
		from(init.Source, r.unmeshedClient), label(init.DestinationLabels, "srv_name", server),
		contains("the explanation", explanation, "server="+server, "permitted_by=none"))
}

// checkDeniedConnection connects from a pod without a proxy to redis, which permits only the
// service account client. It verifies that the connection is closed without a response, and that
// the metrics of the proxy include the denial. Tap and the connection's explanation must also
// show it, unless the proxy is foreign.
func (r *running) checkDeniedConnection(ctx context.Context) (string, error) {
	out, err := r.runAsApp(ctx, r.unmeshedClient, "redis-cli", "-h", r.data.addr.String(), "-p", r.redis.port(), "GET", "key")
	// Depending on the moment, redis-cli fails or prints that the connection was closed.
	if err == nil && !strings.Contains(out, "closed") {
		return "", fmt.Errorf("redis-cli received %q", out)
	}
	n, err := denials(ctx, r.data, "inbound_tcp_authz_deny_total{", r.redis.serverName(r.data))
	if err != nil || r.isForeign(r.data) {
		return fmt.Sprintf("closed; inbound_tcp_authz_deny_total: %d", n), err
	}
	// The first connection was not tapped, so others are opened.
	failed, err := r.deniedConnection(ctx, r.data, r.unmeshedClient, func() {
		_, _ = r.runAsApp(ctx, r.unmeshedClient, "redis-cli", "-h", r.data.addr.String(), "-p", r.redis.port(), "GET", "key")
	})
	if err != nil {
		return "", err
	}
	explanation := layer.Node{Name: "connection", Children: failed.Close.Explanation}.String()
	return fmt.Sprintf("closed; inbound_tcp_authz_deny_total: %d; in tap and its explanation", n), errors.Join(
		contains("the error", failed.Close.Err, "unauthorized connection"),
		contains("the explanation", explanation, "server="+r.redis.serverName(r.data), "permitted_by=none"))
}

// denials returns how many requests or connections p's proxy denied, as counted by metric under
// the policy server. It waits for the first one, because a proxy may count it late.
func denials(ctx context.Context, p pod, metric, server string) (n int, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(p.addr, adminPort))
	err = until(ctx, fmt.Sprintf("%s to count a denial by the server %s", p.name, server), func() (bool, error) {
		// Each attempt counts from the beginning.
		n = 0
		err := series(ctx, client, url, metric, func(labels string, value int) {
			if strings.Contains(labels, fmt.Sprintf("srv_name=%q", server)) {
				n += value
			}
		})
		return n > 0, err
	})
	return n, err
}
