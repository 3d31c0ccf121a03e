package cluster

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"
)

// Decision holds the sums over the metrics for inbound requests that policies decided alike: by the
// same server, route and authorization.
type Decision struct {
	Route         string // "" for connections that are not HTTP
	Server        string
	Authorization string // kind/name; "" if no authorization permitted the requests

	Period            time.Duration
	Success, Failures float64 // responses to the permitted requests
	Denied            float64 // requests, and connections that are not HTTP

	latency latencies
}

// Quantile returns the latency that the fraction q of the responses did not exceed. It returns
// false without responses.
func (d *Decision) Quantile(q float64) (time.Duration, bool) { return d.latency.quantile(q) }

// Decisions returns what the policies of the resources decided in the given period, which begins
// now. The result is sorted by server, route and authorization, and includes a row without
// requests for each authorization that permitted requests before. Decisions calls warn for each
// proxy that does not return its metrics, and does not count this proxy's decisions.
func (c *Cluster) Decisions(ctx context.Context, resources []Resource, period time.Duration, warn func(error)) ([]Decision, error) {
	m, err := c.measure(ctx, resources, []string{
		"response_total", "response_latency_ms_bucket",
		"inbound_http_authz_deny_total", "inbound_tcp_authz_deny_total", "inbound_tcp_authz_allow_total",
	}, period, warn)
	if err != nil {
		return nil, err
	}
	rows := decisions{}
	// A proxy without both readings has no growth to add.
	for _, p := range m.pods.Of {
		rows.add(m.before[p.key()], m.after[p.key()])
	}
	all := make([]Decision, 0, len(rows))
	for _, d := range rows {
		d.Period = m.period
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Decision) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Authorization, b.Authorization))
	})
	return all, ctx.Err()
}

// decisions holds the rows of Decisions by their server, route and authorization.
type decisions map[[3]string]*Decision

// add adds what one proxy decided between two readings of its metrics.
func (d decisions) add(previous, current series) {
	for s := range current.since(previous) {
		server := s.labels["srv_name"]
		// Outbound metrics, and requests without a server, are not decisions.
		if s.labels["srv_kind"] == "" || s.labels["direction"] == "outbound" {
			continue
		}
		if s.labels["srv_kind"] == "default" {
			server = "default:" + server
		}
		authorization := ""
		if kind := s.labels["authz_kind"]; kind != "" {
			authorization = kind + "/" + s.labels["authz_name"]
		}
		// Metrics of different names and classes add up in one row.
		key := [3]string{server, s.labels["route_name"], authorization}
		row := d[key]
		if row == nil {
			row = &Decision{Server: key[0], Route: key[1], Authorization: key[2], latency: latencies{}}
			d[key] = row
		}
		switch s.name {
		case "response_total":
			if s.labels["classification"] == "success" {
				row.Success += s.grown
			} else {
				row.Failures += s.grown
			}
		case "response_latency_ms_bucket":
			// The bucket's bound is its label le.
			if le, err := strconv.ParseFloat(s.labels["le"], 64); err == nil {
				row.latency[le] += s.grown
			}
		case "inbound_tcp_authz_allow_total": // the row exists
		default:
			row.Denied += s.grown
		}
	}
}
