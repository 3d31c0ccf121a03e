package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
)

// shopSplit returns an outbound policy for shop: an HTTPRoute to the backends shop-1 and shop-2,
// with the weights first and second.
func (c cluster) shopSplit(first, second int) object {
	// ref refers to a service as a backend.
	ref := func(s service, weight int) object {
		return object{"name": s.host(), "port": s.addr.Port(), "weight": weight}
	}
	return object{"httpRoutes": []object{{
		"name": "shop-route", "rules": []object{{"backendRefs": []object{ref(c.shop1, first), ref(c.shop2, second)}}},
	}}}
}

// shopAccrual returns an outbound policy of shop without routes. The policy ejects an
// endpoint after three failures in a row.
func shopAccrual() object {
	return object{"failureAccrual": object{"maxFailures": 3, "minPenalty": "6s", "maxPenalty": "10s", "jitterRatio": 0.1}}
}

// setPolicy makes policy the outbound policy for shop. It replaces the controller's configuration
// file, or objects in the API server, while the controller runs.
func (r *running) setPolicy(ctx context.Context, policy object) error {
	if r.apiServer != nil {
		return r.applyShop(ctx, policy)
	}
	return r.writeDestinations(r.path("run", "destinations.yaml"), policy)
}

// askShop sends n requests to shop, ten at a time. It returns how many responses came from each
// pod, and how many of all had the status 500.
func (r *running) askShop(ctx context.Context, n int) (byPod map[string]int, failed int, err error) {
	// curl sends a request for each number in the brackets. The marker is for checkWire, which looks for it in the
	// captured traffic.
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.shop.host(), n, encryptedMarker)
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--max-time", "30", "--parallel", "--parallel-max", "10",
		"-w", "%{http_code}\n", url)
	if err != nil {
		return nil, 0, err
	}
	byPod = map[string]int{}
	// For each request, there is a line with the pod and the URI, and one with the status.
	for _, line := range lines(out) {
		switch pod, _, _ := strings.Cut(line, " "); pod {
		case "200":
		case "500":
			failed++
		case r.web1.name, r.web2.name:
			byPod[pod]++
		default:
			return nil, 0, fmt.Errorf("invalid response %q", line)
		}
	}
	if got := byPod[r.web1.name] + byPod[r.web2.name]; got != n {
		return nil, 0, fmt.Errorf("%d responses to %d requests", got, n)
	}
	return byPod, failed, nil
}

// checkSplit changes shop's route from one backend to a split 90/10. It verifies that the second
// backend gets requests, and about a tenth of all requests. It also verifies that metrics, tap,
// an explanation and /stack in the client's proxy show the backends.
func (r *running) checkSplit(ctx context.Context) (string, error) {
	// At first, all requests go to the pod web1, which is the backend shop-1.
	byPod, failed, err := r.askShop(ctx, requests)
	if err != nil || failed > 0 || byPod[r.web2.name] > 0 {
		return "", fmt.Errorf("before the split: %v, %d failed: %w", byPod, failed, err)
	}
	changed := time.Now()
	if err := r.setPolicy(ctx, r.shopSplit(90, 10)); err != nil {
		return "", err
	}
	// The policy takes effect after a moment.
	err = until(ctx, "the split", func() (bool, error) {
		byPod, _, err := r.askShop(ctx, 20)
		return byPod[r.web2.name] > 0, err
	})
	took := time.Since(changed)
	if err != nil {
		return "", err
	}
	// With 1000 requests, the share must be between 5% and 15%.
	const n = 1000
	if byPod, failed, err = r.askShop(ctx, n); err != nil {
		return "", err
	}
	if share := byPod[r.web2.name]; failed > 0 || share < n/20 || share > n*3/20 {
		return "", fmt.Errorf("%v of %d requests, %d failed; want a tenth from %s", byPod, n, failed, r.web2.name)
	}
	// The first requests to shop-2 also count, so the metric may be larger.
	labels := shopLabels(r.shop.name, "HTTPRoute", "shop-route")
	counted, err := r.clientSeries(ctx, "outbound_http_route_backend_requests_total{", append(labels, `backend_name="shop-2"`)...)
	if err == nil && counted < byPod[r.web2.name] {
		err = fmt.Errorf("outbound_http_route_backend_requests_total: %d, want %d or more", counted, byPod[r.web2.name])
	}
	all, tapErr := r.tapPods(ctx, r.shop, "/tapped-split", r.client)
	stackErr := r.stackHas(ctx, r.shop1.String()+" 90", r.shop2.String()+" 10")
	whyErr := r.explainsShop(ctx, "/explained-split", "shop-route", "drawn=",
		"authority="+r.shop1.String()+" weight=90", "authority="+r.shop2.String()+" weight=10")
	if err := errors.Join(err, tapErr, stackErr, whyErr); err != nil {
		return "", err
	}
	// The tap shows the endpoint's address, and each backend has one pod.
	target := r.shop1
	if all[0].init.Destination.Addr() == r.web2.addr {
		target = r.shop2
	}
	return fmt.Sprintf("after %.2f s; then %s %d, %s %d; in metrics, tap, its explanation and /stack",
		took.Seconds(), r.web1.name, byPod[r.web1.name], r.web2.name, byPod[r.web2.name]), all[0].routed(r.shop, "HTTPRoute", target)
}

// checkAccrual sets a policy with failure accrual. It verifies that a failing pod is ejected, and
// gets requests again once it has recovered. Metrics, tap, an explanation and /stack in the
// client's proxy must show the ejection.
func (r *running) checkAccrual(ctx context.Context) (string, error) {
	if err := r.setPolicy(ctx, shopAccrual()); err != nil {
		return "", err
	}
	// The policy takes effect after a moment. /stack shows it then.
	if err := until(ctx, "the circuit breakers", func() (bool, error) {
		_, _, err := r.askShop(ctx, 20)
		return r.stackHas(ctx, "max_failures=3") == nil, err
	}); err != nil {
		return "", err
	}
	// web1 fails as long as this file exists.
	if err := writePrivateFile(r.failing(r.web1), "", app); err != nil {
		return "", err
	}
	// The file must not stay if the check fails.
	defer func() { _ = os.Remove(r.failing(r.web1)) }()
	// pending returns how many endpoints of shop are ejected.
	pending := func() (int, error) {
		return r.clientSeries(ctx, "outbound_http_balancer_endpoints{", `backend_name="shop"`, `endpoint_state="pending"`)
	}
	failures := 0
	sent := 0
	err := until(ctx, "the ejection of "+r.web1.name, func() (bool, error) {
		_, failed, err := r.askShop(ctx, 20)
		failures += failed
		sent += 20
		// One of the two endpoints is web1.
		n, seriesErr := pending()
		return n == 1, errors.Join(err, seriesErr)
	})
	if err != nil {
		return "", fmt.Errorf("%d of %d requests failed: %w", failures, sent, err)
	}
	if err := r.showsEjection(ctx); err != nil {
		return "", fmt.Errorf("after the ejection of %s for %d failures: %w", r.web1.name, failures, err)
	}
	if err := os.Remove(r.failing(r.web1)); err != nil {
		return "", err
	}
	recovered := time.Now()
	// The requests let the proxy probe web1.
	if err := until(ctx, r.web1.name+" to return", func() (bool, error) {
		answers, _, err := r.askShop(ctx, 20)
		n, seriesErr := pending()
		return answers[r.web1.name] > 0 && n == 0, errors.Join(err, seriesErr)
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("ejected after %d failures, readmitted %.1f s after its recovery; in metrics, tap, its explanation and /stack",
		failures, time.Since(recovered).Seconds()), nil
}

// showsEjection verifies that the failing pod web1 gets no requests, and that tap, an explanation
// and /stack in the client's proxy show it. It repeats the verification, because the proxy admits
// one request to web1 whenever a penalty ends, and that may be during any of its parts.
func (r *running) showsEjection(ctx context.Context) error {
	// last is the error of the last attempt. until only knows that it failed.
	var last error
	err := until(ctx, "the ejection to show", func() (bool, error) {
		answers, failed, err := r.askShop(ctx, requests)
		if err == nil && (failed > 0 || answers[r.web1.name] > 0) {
			err = fmt.Errorf("%v, %d failed", answers, failed)
		}
		// The circuit breaker of web1 is open, that is, it rejects requests.
		stackErr := r.stackHas(ctx, "state=open")
		all, tapErr := r.tapPods(ctx, r.shop, "/tapped-accrual", r.client)
		// The balancer chose web2, because web1's service was not ready.
		whyErr := r.explainsShop(ctx, "/explained-accrual",
			"chosen="+r.web2.addr.String(), "addr="+r.web1.addr.String(), "result=unready")
		if last = errors.Join(err, stackErr, tapErr, whyErr); last == nil {
			last = errors.Join(from(all[0].init.Destination, r.web2), all[0].routed(r.shop, "default", r.shop))
		}
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// shopLabels returns the labels by which metrics identify a route. parent names the service to
// which the route belongs, kind is the route's kind, such as HTTPRoute, and route its name.
func shopLabels(parent, kind, route string) []string {
	return []string{fmt.Sprintf("parent_name=%q", parent), fmt.Sprintf("route_kind=%q", kind), fmt.Sprintf("route_name=%q", route)}
}

// clientSeries adds up series in the client proxy's metrics, if their text begins with prefix and
// contains all labels. The text is the name, followed by the labels.
func (r *running) clientSeries(ctx context.Context, prefix string, labels ...string) (sum int, err error) {
	// Connections are not reused, so none stays open after a read.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(r.client.addr, adminPort))
	// A series counts if it has all labels.
	err = series(ctx, client, url, prefix, func(have string, value int) {
		for _, l := range labels {
			if !strings.Contains(have, l) {
				return
			}
		}
		sum += value
	})
	return sum, err
}

// stackHas returns an error unless /stack of the client's proxy contains all texts. It reads
// /stack in the client's pod, because the proxy serves /stack only on the same machine. If this
// proxy is foreign, it returns nil.
func (r *running) stackHas(ctx context.Context, texts ...string) error {
	if r.isForeign(r.client) {
		return nil
	}
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", fmt.Sprintf("http://127.0.0.1:%d/stack", adminPort))
	if err != nil {
		return err
	}
	return contains("/stack", out, texts...)
}

// routed returns an error unless t's route labels name the services parent and backend, and the
// given kind of route.
func (t tapped) routed(parent service, kind string, backend service) error {
	labels := t.init.RouteLabels
	return errors.Join(label(labels, "parent_kind", "Service"), label(labels, "parent_name", parent.name),
		label(labels, "route_kind", kind), label(labels, "backend_name", backend.name))
}
