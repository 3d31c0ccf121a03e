package file

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// parse reads a file that is to be good, and valid for any target.
func parse(t testing.TB, data string) *Set {
	t.Helper()
	s, err := Parse("f", []byte(data))
	require.NoError(t, err)
	for _, target := range s.Targets() {
		require.NoError(t, s.Profile(target).Validate(), target)
	}
	return s
}

func TestShortForm(t *testing.T) {
	s := parse(t, `
target: web.default.svc.cluster.local
routes:
- name: vote
  match: {method: GET, path: /api/vote.json}
  labels: {team: ballot}
  timeout: 1s
  tryTimeout: 300ms
  retry: true
  maxRetries: 3
  hedge: 50ms
  limit: 100
  rate: {perSecond: 0.5, burst: 7}
  successes: [404]
  failures: [500-599, 429]
- match:
    method: [GET, HEAD]
    pathPrefix: /static
    host: [www.example.com, {prefix: img.}]
    header: {x-canary: {present: true}, x-user: [ada, {regex: b.*}]}
    query: {page: {exact: "1"}}
    not: {pathRegex: '/static/a|/static/b'}
  rate: 10
- name: buy
  retry: {nonIdempotent: true}
  match: {any: [{grpc: {service: shop.v1.Shop, method: Buy}}, {grpc: {method: Pay}}]}
  classes:
  - {match: {status: [200-299, 301]}, failure: false}
  - {match: {not: {any: [{status: 404}]}}, failure: true}
- {name: all, match: {pathPrefix: /}}
split: {web-v1.default.svc.cluster.local:80: 90, web-v2.default.svc.cluster.local: 10, web-v3.default.svc.cluster.local: 0}
retryBudget: {ratio: 0.5, minPerSecond: 3, ttl: 20s}
opaque: true
---
target: [WEB.default.svc.cluster.local.:8080, 10.96.0.10:80, "[fd00::1]:80"]
name: web.default.svc.cluster.local
---
# A document of comments is ignored.
`)
	require.Equal(t, &profiles.Profile{
		Name: "web.default.svc.cluster.local",
		Routes: []profiles.Route{
			{
				Name:    "vote",
				Match:   profiles.All{profiles.Method("GET"), profiles.Path(`^/api/vote\.json$`)},
				Labels:  map[string]string{"team": "ballot", "route": "vote"},
				Timeout: time.Second, AttemptTimeout: 300 * time.Millisecond, Retry: &profiles.Retry{Max: 3},
				Hedge: 50 * time.Millisecond, Limit: 100, Rate: profiles.Rate{PerSecond: 0.5, Burst: 7},
				Classes: []profiles.ResponseClass{
					{Match: profiles.Status{Min: 404, Max: 404}},
					{Match: profiles.Status{Min: 500, Max: 599}, Failure: true},
					{Match: profiles.Status{Min: 429, Max: 429}, Failure: true},
				},
			},
			{
				Match: profiles.All{
					profiles.Any{profiles.Method("GET"), profiles.Method("HEAD")},
					profiles.PathPrefix("/static"),
					profiles.Any{
						profiles.Host{Value: profiles.Exact("www.example.com")},
						profiles.Host{Value: profiles.Prefix("img.")},
					},
					profiles.Header{Name: "x-canary", Value: profiles.AnyValue{}},
					profiles.Any{
						profiles.Header{Name: "x-user", Value: profiles.Exact("ada")},
						profiles.Header{Name: "x-user", Value: profiles.Regex("b.*")},
					},
					profiles.Query{Name: "page", Value: profiles.Exact("1")},
					profiles.Not{Match: profiles.Path("^(?:/static/a|/static/b)$")},
				},
				Rate: profiles.Rate{PerSecond: 10},
			},
			{
				Name: "buy", Labels: map[string]string{"route": "buy"}, Retry: &profiles.Retry{NonIdempotent: true},
				Match: profiles.Any{
					profiles.GRPC{Service: "shop.v1.Shop", Method: "Buy"},
					profiles.GRPC{Method: "Pay"},
				},
				Classes: []profiles.ResponseClass{
					{Match: profiles.Any{profiles.Status{Min: 200, Max: 299}, profiles.Status{Min: 301, Max: 301}}},
					{Match: profiles.Not{Match: profiles.Any{profiles.Status{Min: 404, Max: 404}}}, Failure: true},
				},
			},
			{Name: "all", Labels: map[string]string{"route": "all"}, Match: profiles.PathPrefix("/")},
		},
		Targets: []profiles.Target{
			{Authority: "web-v1.default.svc.cluster.local:80", Weight: 90},
			{Authority: "web-v2.default.svc.cluster.local:81", Weight: 10},
			{Authority: "web-v3.default.svc.cluster.local:81"},
		},
		RetryBudget:    &profiles.RetryBudget{Ratio: 0.5, MinPerSecond: 3, TTL: 20 * time.Second},
		OpaqueProtocol: true,
	}, s.Profile("Web.default.svc.cluster.local.:81"))

	named := &profiles.Profile{
		Name:        "web.default.svc.cluster.local",
		RetryBudget: &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
	}
	for _, target := range []string{"web.default.svc.cluster.local:8080", "10.96.0.10:80", "[::ffff:10.96.0.10]:80", "[fd00:0::1]:80"} {
		assert.Equal(t, named, s.Profile(target), target)
	}
	for _, target := range []string{"10.96.0.10:81", "10.96.0.10", "web.other.svc.cluster.local", "", "a b"} {
		assert.Nil(t, s.Profile(target), target)
	}
	assert.Equal(t, []string{
		"10.96.0.10:80", "[fd00::1]:80", "web.default.svc.cluster.local", "web.default.svc.cluster.local:8080",
	}, s.Targets())
}

func TestJSON(t *testing.T) {
	s := parse(t, "{\n\t\"target\": \"web\", \"routes\": [{\"name\": \"😀\\\\\\u00e4\\n\", \"match\": {\"path\": \"/a\"}}]}")
	require.Len(t, s.Profile("web").Routes, 1)
	assert.Equal(t, "😀\\ä\n", s.Profile("web").Routes[0].Name)
	assert.Equal(t, profiles.Path("^/a$"), s.Profile("web").Routes[0].Match)
	requireMistakes(t, "{\"target\": \"web\",\n\"name\": \"\\/\"}", `f:2: not YAML: found unknown escape character`)
}

// documentedBlock returns the indented lines of the package's documentation
// from the one that begins so.
func documentedBlock(t *testing.T, begin string) string {
	t.Helper()
	doc, err := os.ReadFile("FORMAT.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(doc), "```yaml\n"+begin)
	require.True(t, found)
	block, _, _ := strings.Cut(rest, "\n```")
	return begin + block
}

func TestDocumentedFormat(t *testing.T) {
	web := parse(t, documentedBlock(t, "target: ")).Profile("web.default.svc.cluster.local:80")
	require.Len(t, web.Routes, 2)
	require.Len(t, web.Targets, 2)
	require.Equal(t, linkerdDefault(), web.RetryBudget)

	match := strings.ReplaceAll(documentedBlock(t, "method: "), "{...}", "{method: GET}")
	match = strings.ReplaceAll("\n"+match, "\n", "\n    ")
	classes := strings.ReplaceAll("\n"+documentedBlock(t, "classes:"), "\n", "\n  ")
	route := parse(t, "target: web\nroutes:\n- match:"+match+classes).Profile("web").Routes[0]
	require.Len(t, route.Match, 13, "each of the eleven fields, one of them with three headers")
	require.Len(t, route.Classes, 2)
	require.Equal(t, profiles.All{
		profiles.Any{profiles.GRPCStatus{Min: 14, Max: 14}, profiles.GRPCStatus{Min: 13, Max: 15}},
		profiles.Trailer{Name: "x-partial", Value: profiles.AnyValue{}},
	}, route.Classes[1].Match)

	changes := strings.ReplaceAll("\n"+documentedBlock(t, "requestHeader:"), "\n", "\n  ")
	route = parse(t, "target: web:81\nroutes:\n- match: {pathPrefix: /}"+changes).Profile("web:81").Routes[0]
	require.Equal(t, layer.HeaderMutation{
		Add:    []layer.HeaderField{{Name: "x-seen", Value: "a"}, {Name: "x-seen", Value: "b"}},
		Set:    []layer.HeaderField{{Name: "x-from", Value: "web"}},
		Remove: []string{"x-debug", "x-trace"},
	}, route.RequestHeader)
	require.Equal(t, layer.HeaderMutation{Remove: []string{"server"}}, route.ResponseHeader)
	require.Equal(t, &profiles.Redirect{
		Status: 308, Scheme: "https", Host: "www.example.com", Port: 8443, OldPrefix: "/v1", NewPrefix: "/v2",
	}, route.Redirect)
	require.Equal(t, []profiles.Fault{
		{Fraction: 0.01, Status: 503, GRPC: 14, TTL: 10 * time.Minute},
		{Fraction: 0.1, Delay: 100 * time.Millisecond, Jitter: 50 * time.Millisecond, TTL: 10 * time.Minute},
	}, route.Faults)
	require.Equal(t, []profiles.Mirror{
		{Authority: "web-v3.default.svc.cluster.local:81", Fraction: 0.1, MaxBodyBytes: 64 << 10, MaxInFlight: 100},
	}, route.Mirrors)

	require.Equal(t, &resolve.Endpoint{
		Labels: map[string]string{"zone": "a"}, Weight: 10000,
		ID: resolve.ID{
			Addr: netip.MustParseAddrPort("10.0.0.1:80"), Protocol: resolve.H2, ServerName: "web.default", Identity: "web.default",
			Authority: "web.default", OpaquePort: 4143, PingInterval: 10 * time.Second,
		},
	}, parse(t, "target: web\n"+documentedBlock(t, "endpoint:")).Profile("web").Endpoint)
}

// Metrics and tap use the label in both formats.
func TestRouteNameIsLabel(t *testing.T) {
	routes := parse(t, `
target: web
routes:
- {name: vote, match: {path: /vote}}
- {name: mine, match: {path: /mine}, labels: {route: yours}}
- {match: {path: /none}, labels: {team: ballot}}
- {match: {pathPrefix: /}}
`).Profile("web:80").Routes
	require.Len(t, routes, 4)
	assert.Equal(t, map[string]string{"route": "vote"}, routes[0].Labels)
	assert.Equal(t, map[string]string{"route": "yours"}, routes[1].Labels)
	assert.Equal(t, map[string]string{"team": "ballot"}, routes[2].Labels)
	assert.Nil(t, routes[3].Labels)
}

// A path is an expression for the Router, which limits its size.
func TestParseLongPath(t *testing.T) {
	_, err := Parse("f", []byte(inMatch("path: /"+strings.Repeat("a", 10_000))))
	require.ErrorContains(t, err, "regular expression is too large: 10003 bytes, at most 10000")
	_, err = Parse("f", []byte(inMatch("path: /"+strings.Repeat("a", 9_000))))
	require.NoError(t, err)
}
