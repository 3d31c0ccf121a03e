package policytest_test

import (
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/gotower/gotower/examples/destination/internal/policytest"
)

const (
	service = `metadata {resource {group: "core" kind: "Service" name: "web" namespace: "shop"}} `
	queue   = `queue {capacity: 1 failfast_timeout {}} `
	backend = service + queue + `balancer {discovery {dst {path: "web"}} peak_ewma {default_rtt {} decay {}}} `
	one     = `backends {first_available {backends {backend {` + backend + `}}}} `
)

// linkerd2-proxy accepts the policies with "" and rejects the others, with a reason.
func TestOutbound(t *testing.T) {
	routes := func(rule string) string {
		return service + `protocol {http1 {routes {` + service + `rules {` + rule + `}}}}`
	}
	for text, want := range map[string]string{
		``:      "missing metadata",
		service: "missing kind",
		`metadata {resource {group: "core" kind: "Service" name: "web"}}`:                   "namespace must not be empty",
		service + `protocol {http1 {routes {}}}`:                                            "missing metadata",
		service + `protocol {opaque {}}`:                                                    "",
		service + `protocol {detect {timeout {} http1 {} opaque {}}}`:                       "Detect missing HTTP/2 configuration",
		service + `protocol {tls {routes {` + service + `}}}`:                               "exactly one rule, but 0",
		service + `protocol {opaque {routes {} routes {}}}`:                                 "exactly one route, but 2",
		service + `protocol {grpc {routes {` + service + `rules {` + one + `matches {}}}}}`: "missing RPC match",
		routes(one): "",
		routes(``):  "missing distribution kind",
		routes(one + `matches {path {regex: "{"}}`):                                 "invalid regular expression",
		routes(one + `matches {headers {name: "a b" exact: ""}}`):                   "invalid HTTP header name",
		routes(one + `matches {query_params {exact: "x"}}`):                         "missing a query param name",
		routes(one + `filters {}`):                                                  "missing filter kind",
		routes(one + `filters {redirect {path {full: "x"}}}`):                       "redirect paths must be absolute",
		routes(one + `filters {failure_injector {status: 99}}`):                     "invalid HTTP status code",
		routes(one + `retry {}`):                                                    "invalid condition",
		routes(one + `retry {conditions {} backoff {}}`):                            "missing min_backoff",
		routes(one + `timeouts {request {seconds: -1}}`):                            "invalid request timeout",
		routes(`backends {random_available {}}`):                                    "may not be empty",
		routes(`backends {first_available {backends {}}}`):                          "missing backend metadata",
		routes(`backends {first_available {backends {backend {` + service + `}}}}`): "missing queue",
		routes(`backends {random_available {backends {backend {backend {` + backend + `}}} backends {backend {backend {` + backend + `}}}}}`): "sum of the weights is 0",
		service + `protocol {http1 {failure_accrual {}}}`:                                                                                   "missing kind",
		service + `protocol {http1 {failure_accrual {unified {success_rate_threshold: 2}}}}`:                                                "must be between 0.0 and 1.0",
		service + `protocol {http1 {failure_accrual {consecutive_failures {backoff {min_backoff {seconds: 2} max_backoff {seconds: 1}}}}}}`: "maximum must not be less than minimum",
	} {
		var p outbound.OutboundPolicy
		require.NoError(t, prototext.Unmarshal([]byte(text), &p), text)
		judge(t, want, policytest.Outbound(&p), text)
	}
}

func TestInbound(t *testing.T) {
	const labels = `labels {key: "name" value: "web"} `
	for text, want := range map[string]string{
		``:                                      "missing 'name' label",
		labels:                                  "missing proxy protocol",
		labels + `protocol {detect {}}`:         "missing protocol detection timeout",
		labels + `protocol {http1 {routes {}}}`: "invalid labels: missing",
		labels + `protocol {opaque {}}`:         "",
		labels + `protocol {opaque {}} authorizations {}`:                                                                  "missing networks",
		labels + `protocol {opaque {}} authorizations {networks {net {}}}`:                                                 "invalid network",
		labels + `protocol {opaque {}} authorizations {networks {net {ip {ipv4: 1} prefix_len: 33}}}`:                      "invalid network",
		labels + `protocol {opaque {}} authorizations {networks {net {ip {ipv4: 1}}} authentication {meshTLS {}}}`:         "missing authentications",
		labels + `protocol {opaque {}} authorizations {networks {net {ip {ipv4: 1}}} authentication {unauthenticated {}}}`: "missing 'name' label",
		labels + `protocol {http2 {routes {metadata {default: "x"} rules {filters {}}}}}`:                                  "unknown filter",
	} {
		var s inbound.Server
		require.NoError(t, prototext.Unmarshal([]byte(text), &s), text)
		judge(t, want, policytest.Inbound(&s), text)
	}
}

func judge(t *testing.T, want string, err error, text string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, text)
		return
	}
	require.ErrorContains(t, err, want, text)
}
