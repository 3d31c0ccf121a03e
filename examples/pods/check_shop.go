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

// shopSplit returns an outbound policy of shop: an HTTPRoute to the backends shop-1 and
// shop-2. first and second are the weights of these backends.
func (c cluster) shopSplit(first, second int) object {
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
	return object{"failureAccrual": object{"maxFailures": 3, "minPenalty": "3s", "maxPenalty": "5s", "jitterRatio": 0.1}}
}

// setPolicy makes policy the outbound policy of shop. It replaces the configuration file of
// the controller, or objects of the API server, while the controller runs.
func (r *running) setPolicy(ctx context.Context, policy object) error {
	if r.apiServer != nil {
		return r.applyShop(ctx, policy)
	}
	return r.writeDestinations(r.path("run", "destinations.yaml"), policy)
}

// askShop sends n requests to shop, ten at a time. It returns the number of responses of each
// pod, and the number of all responses with the status 500.
func (r *running) askShop(ctx context.Context, n int) (by map[string]int, failed int, err error) {
	url := fmt.Sprintf("http://%s/[1-%d]?%s", r.shop.host(), n, encryptedMarker)
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--max-time", "30", "--parallel", "--parallel-max", "10",
		"-w", "%{http_code}\n", url)
	if err != nil {
		return nil, 0, err
	}
	by = map[string]int{}
	for _, line := range lines(out) {
		switch pod, _, _ := strings.Cut(line, " "); pod {
		case "200":
		case "500":
			failed++
		case r.web1.name, r.web2.name:
			by[pod]++
		default:
			return nil, 0, fmt.Errorf("invalid response %q", line)
		}
	}
	if got := by[r.web1.name] + by[r.web2.name]; got != n {
		return nil, 0, fmt.Errorf("%d responses to %d requests", got, n)
	}
	return by, failed, nil
}

// maxChange is the maximum time from a change of the policy until the change
// affects traffic.
const maxChange = time.Second

// checkSplit changes the route of shop from one backend to a split 90/10. It verifies that
// the second backend gets requests within maxChange, and about a tenth of all requests. It
// also verifies that metrics, tap, an explanation and /stack of the client's proxy show the
// backends.
func (r *running) checkSplit(ctx context.Context) (string, error) {
	by, failed, err := r.askShop(ctx, requests)
	if err != nil || failed > 0 || by[r.web2.name] > 0 {
		return "", fmt.Errorf("before the split: %v, %d failed: %w", by, failed, err)
	}
	changed := time.Now()
	if err := r.setPolicy(ctx, r.shopSplit(90, 10)); err != nil {
		return "", err
	}
	err = until(ctx, "the split", func() (bool, error) {
		by, _, err := r.askShop(ctx, 20)
		return by[r.web2.name] > 0, err
	})
	took := time.Since(changed)
	if err != nil || took > maxChange {
		return "", fmt.Errorf("the first response of %s came after %v, want %v: %w", r.web2.name, took, maxChange, err)
	}
	const n = 1000
	if by, failed, err = r.askShop(ctx, n); err != nil {
		return "", err
	}
	if share := by[r.web2.name]; failed > 0 || share < n/20 || share > n*3/20 {
		return "", fmt.Errorf("%v of %d requests, %d failed; want a tenth from %s", by, n, failed, r.web2.name)
	}
	labels := shopLabels(r.shop.name, "HTTPRoute", "shop-route")
	counted, err := r.clientSeries(ctx, "outbound_http_route_backend_requests_total{", append(labels, `backend_name="shop-2"`)...)
	if err == nil && counted < by[r.web2.name] {
		err = fmt.Errorf("outbound_http_route_backend_requests_total: %d, want %d or more", counted, by[r.web2.name])
	}
	all, tapErr := r.tapPods(ctx, r.shop, "/tapped-split", r.client)
	stackErr := r.stackHas(ctx, r.shop1.String()+" 90", r.shop2.String()+" 10")
	why, whyErr := r.explainShop(ctx, "/explained-split")
	if err := errors.Join(err, tapErr, stackErr, whyErr, contains("the explanation", why, "shop-route", "drawn=",
		"authority="+r.shop1.String()+" weight=90", "authority="+r.shop2.String()+" weight=10")); err != nil {
		return "", err
	}
	to := r.shop1
	if all[0].init.Destination.Addr() == r.web2.addr {
		to = r.shop2
	}
	return fmt.Sprintf("after %.2f s; then %s %d, %s %d; in metrics, tap, its explanation and /stack",
		took.Seconds(), r.web1.name, by[r.web1.name], r.web2.name, by[r.web2.name]), all[0].routed(r.shop, "HTTPRoute", to)
}

// checkAccrual sets a policy with failure accrual. It verifies that a failing pod is ejected,
// and gets requests again after it has recovered. It also verifies that metrics, tap, an
// explanation and /stack of the client's proxy show the state after the ejection.
func (r *running) checkAccrual(ctx context.Context) (string, error) {
	if err := r.setPolicy(ctx, shopAccrual()); err != nil {
		return "", err
	}
	if err := until(ctx, "the circuit breakers", func() (bool, error) {
		_, _, err := r.askShop(ctx, 20)
		return r.stackHas(ctx, "max_failures=3") == nil, err
	}); err != nil {
		return "", err
	}
	if err := writePrivateFile(r.failing(r.web1), "", app); err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(r.failing(r.web1)) }()
	pending := func() (int, error) {
		return r.clientSeries(ctx, "outbound_http_balancer_endpoints{", `backend_name="shop"`, `endpoint_state="pending"`)
	}
	failures, sent := 0, 0
	limited, cancel := context.WithTimeout(ctx, stepTimeout/4)
	defer cancel()
	err := until(limited, "the ejection of "+r.web1.name, func() (bool, error) {
		_, failed, err := r.askShop(ctx, 20)
		failures, sent = failures+failed, sent+20
		n, seriesErr := pending()
		return n == 1, errors.Join(err, seriesErr)
	})
	if err != nil {
		return "", fmt.Errorf("%d of %d requests failed: %w", failures, sent, err)
	}
	by, failed, err := r.askShop(ctx, requests)
	if err != nil || failed > 0 || by[r.web1.name] > 0 {
		return "", fmt.Errorf("%s was ejected after %d failures, but then: %v, %d failed: %w", r.web1.name, failures, by, failed, err)
	}
	all, err := r.tapPods(ctx, r.shop, "/tapped-accrual", r.client)
	why, whyErr := r.explainShop(ctx, "/explained-accrual")
	if err := errors.Join(err, r.stackHas(ctx, "state=open"), whyErr, contains("the explanation", why,
		"chosen="+r.web2.addr.String(), "addr="+r.web1.addr.String(), "result=unready")); err != nil {
		return "", err
	}
	if err := errors.Join(from(all[0].init.Destination, r.web2), all[0].routed(r.shop, "default", r.shop)); err != nil {
		return "", err
	}
	if err := os.Remove(r.failing(r.web1)); err != nil {
		return "", err
	}
	recovered := time.Now()
	n := 0
	err = until(ctx, r.web1.name+" to return", func() (bool, error) {
		var seriesErr error
		by, failed, err = r.askShop(ctx, 20)
		n, seriesErr = pending()
		return by[r.web1.name] > 0 && n == 0, errors.Join(err, seriesErr)
	})
	if err != nil {
		return "", fmt.Errorf("after its recovery: %v, %d failed, %d endpoints pending: %w", by, failed, n, err)
	}
	return fmt.Sprintf("ejected after %d failures, readmitted %.1f s after its recovery; in metrics, tap, its explanation and /stack",
		failures, time.Since(recovered).Seconds()), nil
}

// shopLabels returns the labels by which metrics identify a route. The argument parent is
// the name of the service to which the route belongs. kind is the kind of the route, such
// as HTTPRoute, and route is its name.
func shopLabels(parent, kind, route string) []string {
	return []string{fmt.Sprintf("parent_name=%q", parent), fmt.Sprintf("route_kind=%q", kind), fmt.Sprintf("route_name=%q", route)}
}

// clientSeries adds up the values of series in the metrics of the client's proxy. It includes a
// series if the text of the series begins with prefix and contains all elements of labels. The
// text is the name, followed by the labels.
func (r *running) clientSeries(ctx context.Context, prefix string, labels ...string) (sum int, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://%s/metrics", netip.AddrPortFrom(r.client.addr, adminPort))
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

// stackHas returns an error unless /stack of the client's proxy contains all texts. It
// reads /stack in the pod of the client, because the proxy serves /stack only on the same
// machine.
func (r *running) stackHas(ctx context.Context, texts ...string) error {
	out, err := r.runAsApp(ctx, r.client, "curl", "-sS", "--fail", fmt.Sprintf("http://127.0.0.1:%d/stack", adminPort))
	if err != nil {
		return err
	}
	return contains("/stack", out, texts...)
}

// routed returns an error unless the route labels of t have the names of the services parent and
// backend, and the given kind of the route.
func (t tapped) routed(parent service, kind string, backend service) error {
	labels := t.init.RouteLabels
	return errors.Join(label(labels, "parent_kind", "Service"), label(labels, "parent_name", parent.name),
		label(labels, "route_kind", kind), label(labels, "backend_name", backend.name))
}
