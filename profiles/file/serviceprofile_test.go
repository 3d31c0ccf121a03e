package file

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

// sp puts lines below the spec of a ServiceProfile, from line 6 on.
func sp(lines string) string {
	return "apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata:\n  name: web.ns.svc.cluster.local\nspec:\n" + lines
}

func linkerdDefault() *profiles.RetryBudget {
	return &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second}
}

func TestServiceProfile(t *testing.T) {
	s := parse(t, `
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  creationTimestamp: "2024-05-01T10:00:00Z"
  generation: 3
  name: web.ns.svc.cluster.local
  namespace: ns
  resourceVersion: "4711"
  uid: 6b6d3f0e-8a1c-4b2e-9c1d-000000000000
spec:
  routes:
  - name: GET /authors/{id}
    condition: {method: get, pathRegex: '/authors/\d+'}
    isRetryable: true
    timeout: 250ms
    responseClasses:
    - condition: {status: {min: 500, max: 599}, all: [{not: {status: {min: 503, max: 503}}}]}
      isFailure: true
    - condition: {any: [{status: {min: 200, max: 299}}, {status: {min: 404, max: 404}}]}
  - name: other
    timeout: ""
    condition:
      any:
      - all: [{method: POST}, {pathRegex: '/a|/b'}]
      - all: [{not: {method: purge}}, {pathRegex: /info.txt}]
  - {name: all, condition: {all: [], method: }}
  dstOverrides:
  - {authority: web-v1.ns.svc.cluster.local, weight: 500m}
  - {authority: "web-v2.ns.svc.cluster.local:8080", weight: "1"}
  - {authority: web-v3.ns.svc.cluster.local., weight: 0}
  opaquePorts: {"3306": {}, 4444: {}}
`)
	require.Empty(t, s.Warnings)
	want := &profiles.Profile{
		Name: "web.ns.svc.cluster.local",
		Routes: []profiles.Route{
			{
				Name: "GET /authors/{id}", Labels: map[string]string{"route": "GET /authors/{id}"},
				Match: profiles.All{profiles.Method("GET"), profiles.Path(`/authors/\d+`)},
				Retry: &profiles.Retry{NonIdempotent: true}, Timeout: 250 * time.Millisecond,
				Classes: []profiles.ResponseClass{
					{
						Match: profiles.All{
							profiles.Status{Min: 500, Max: 599},
							profiles.All{profiles.Not{Match: profiles.Status{Min: 503, Max: 503}}},
						},
						Failure: true,
					},
					{Match: profiles.Any{profiles.Status{Min: 200, Max: 299}, profiles.Status{Min: 404, Max: 404}}},
				},
			},
			{
				Name: "other", Labels: map[string]string{"route": "other"},
				Match: profiles.Any{
					profiles.All{profiles.Method("POST"), profiles.Path("/a|/b")},
					profiles.All{profiles.Not{Match: profiles.Method("PURGE")}, profiles.Path("/info.txt")},
				},
			},
			{Name: "all", Labels: map[string]string{"route": "all"}, Match: profiles.All(nil)},
		},
		Targets: []profiles.Target{
			{Authority: "web-v1.ns.svc.cluster.local:81", Weight: 5000},
			{Authority: "web-v2.ns.svc.cluster.local:8080", Weight: 10000},
			{Authority: "web-v3.ns.svc.cluster.local.:81"},
		},
		Distribution: profiles.RandomAvailable,
		RetryBudget:  linkerdDefault(),
	}
	require.Equal(t, want, s.Profile("web.ns.svc.cluster.local:81"))
	opaque := s.Profile("web.ns.svc.cluster.local:3306")
	assert.True(t, opaque.OpaqueProtocol)
	assert.Equal(t, "web-v1.ns.svc.cluster.local:3306", opaque.Targets[0].Authority)
	assert.Equal(t, "web-v1.ns.svc.cluster.local:80", s.Profile("web.ns.svc.cluster.local").Targets[0].Authority, "as the controller has it")
	assert.Equal(t, []string{"web.ns.svc.cluster.local"}, s.Targets())
}

func TestServiceProfileRetryBudget(t *testing.T) {
	const name = "web.ns.svc.cluster.local"
	budget := func(fields string) *profiles.RetryBudget { return parse(t, sp("  "+fields)).Profile(name).RetryBudget }
	assert.Equal(t, linkerdDefault(), budget("routes: []"))
	assert.Equal(t, linkerdDefault(), budget("retryBudget: "))
	assert.Equal(t, &profiles.RetryBudget{Ratio: 0.5, MinPerSecond: 7, TTL: time.Minute},
		budget("retryBudget: {retryRatio: 0.5, minRetriesPerSecond: 7, ttl: 1m}"))
	assert.Nil(t, budget("retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 5, ttl: 10ms}"), "the proxy drops it")
}

// Parts that the controller accepts and the proxy leaves out.
func TestServiceProfileWarnings(t *testing.T) {
	s := parse(t, sp(`  retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 5, ttl: 61s}
  routes:
  - name: bad regex
    condition: {pathRegex: '/a('}
  - name: bad member
    condition: {any: [{pathRegex: '/a(?=b)'}, {method: GET}]}
  - name: bad not
    condition: {not: {method: "GE T"}}
  - name: nothing but bad members
    condition: {all: [{method: "GE T"}]}
  - name: negative
    condition: {method: GET}
    timeout: -1s
    responseClasses:
    - condition: {status: {min: 500}}
      isFailure: true
    - condition: {not: {status: {}}}
    - condition: {any: []}
    - condition: {all: [{status: {max: 404}}, {status: {min: 400, max: 404}}]}
    - condition: {status: {min: 503, max: 503}}
      isFailure: true
  dstOverrides:
  - {authority: 10.0.0.1, weight: 1}
  - {authority: "web:99999", weight: 1}
`))
	get := profiles.Method("GET")
	p := s.Profile("web.ns.svc.cluster.local:80")
	require.Equal(t, &profiles.Profile{
		Name: "web.ns.svc.cluster.local", Distribution: profiles.RandomAvailable,
		Routes: []profiles.Route{
			{Name: "bad member", Labels: map[string]string{"route": "bad member"}, Match: profiles.Any{get}},
			{
				Name: "nothing but bad members", Labels: map[string]string{"route": "nothing but bad members"},
				Match: profiles.All(nil),
			},
			{Name: "negative", Labels: map[string]string{"route": "negative"}, Match: get, Classes: []profiles.ResponseClass{
				{Match: profiles.All{profiles.Status{Min: 400, Max: 404}}},
				{Match: profiles.Status{Min: 503, Max: 503}, Failure: true},
			}},
		},
	}, p)
	const left = ": left out"
	var got []string
	for _, w := range s.Warnings {
		got = append(got, w.Error())
	}
	require.Equal(t, []string{
		"f:6:16: spec.retryBudget: ttl 1m1s is not from 1s to 60s: left out, so nothing is retried",
		"f:9:16: spec.routes[0].condition: nothing of the condition is left: the route is left out",
		"f:9:28: spec.routes[0].condition.pathRegex \"/a(\": want a regular expression: missing closing ): `/a(`" + left,
		"f:11:35: spec.routes[1].condition.any[0].pathRegex \"/a(?=b)\": want a regular expression: invalid or unsupported Perl syntax: `(?=`" + left,
		"f:13:16: spec.routes[2].condition: nothing of the condition is left: the route is left out",
		`f:13:31: spec.routes[2].condition.not.method "GE T": method "GE T" is not a token` + left,
		`f:15:32: spec.routes[3].condition.all[0].method "GE T": method "GE T" is not a token` + left,
		`f:18:14: spec.routes[4].timeout "-1s": it is below 0` + left,
		"f:20:18: spec.routes[4].responseClasses[0].condition: nothing of the condition is left: the response class is left out",
		"f:20:27: spec.routes[4].responseClasses[0].condition.status: want both min and max" + left,
		"f:22:18: spec.routes[4].responseClasses[1].condition: nothing of the condition is left: the response class is left out",
		"f:22:33: spec.routes[4].responseClasses[1].condition.not.status: want both min and max" + left,
		"f:23:18: spec.routes[4].responseClasses[2].condition: nothing of the condition is left: the response class is left out",
		"f:23:24: spec.routes[4].responseClasses[2].condition.any: no members" + left,
		"f:24:34: spec.routes[4].responseClasses[3].condition.all[0].status: want both min and max" + left,
		`f:28:17: spec.dstOverrides[0].authority "10.0.0.1": target "10.0.0.1:80": not a DNS name` + left,
		`f:29:17: spec.dstOverrides[1].authority "web:99999": target "web:99999": port is not from 1 to 65535` + left,
	}, got)
}

// An expression that is too large for a Router is left out with a warning.
func TestServiceProfileLargeExpression(t *testing.T) {
	s := parse(t, sp("  routes:\n  - {name: big, condition: {pathRegex: '/(a?b?c?d?e?f?){1000}'}}\n"))
	require.Len(t, s.Warnings, 2)
	require.ErrorContains(t, s.Warnings[0], "nothing of the condition is left: the route is left out")
	require.ErrorContains(t, s.Warnings[1], "at most 10000: left out")
	require.Empty(t, s.Profile("web.ns.svc.cluster.local").Routes)
}

// An empty condition on responses is left out, unlike one on requests.
func TestServiceProfileEmptyClass(t *testing.T) {
	s := parse(t, sp(`  routes:
  - name: a
    condition: {all: [], any: [{all: []}]}
    responseClasses:
    - condition: {status: {min: 500}, not: {status: {max: 404}}}
`))
	require.Len(t, s.Warnings, 3)
	routes := s.Profile("web.ns.svc.cluster.local").Routes
	require.Equal(t, profiles.All{profiles.All(nil), profiles.Any{profiles.All(nil)}}, routes[0].Match)
	require.Empty(t, routes[0].Classes)
}

func TestServiceProfileList(t *testing.T) {
	s := parse(t, `{"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
	{"apiVersion":"linkerd.io/v1alpha2","kind":"ServiceProfile","metadata":{"name":"a.ns.svc.cluster.local"},"spec":{
		"routes":[{"name":"GET /a","condition":{"method":"GET","pathRegex":"/a"}}]}},
	{"apiVersion":"linkerd.io/v1alpha1","kind":"ServiceProfile","metadata":{"name":"b.ns.svc.cluster.local"},"spec":{}}]}`)
	assert.Equal(t, []string{"a.ns.svc.cluster.local", "b.ns.svc.cluster.local"}, s.Targets())
	assert.Equal(t, "GET /a", s.Profile("a.ns.svc.cluster.local").Routes[0].Name)

	s = parse(t, `
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfileList
items:
- {apiVersion: linkerd.io/v1alpha2, kind: ServiceProfile, metadata: {name: c.example.com}, spec: {routes: }}
`)
	assert.Equal(t, []string{"c.example.com"}, s.Targets())
}

// The ServiceProfile in the namespace of the service comes first, and a short form
// before both.
func TestServiceProfileNamespace(t *testing.T) {
	in := func(namespace, route string) string {
		return "---\napiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {name: web.ns.svc.cluster.local, namespace: " +
			namespace + "}\nspec: {routes: [{name: " + route + ", condition: {method: GET}}]}\n"
	}
	route := func(s *Set) string { return s.Profile("web.ns.svc.cluster.local:80").Routes[0].Name }
	assert.Equal(t, "own", route(parse(t, in("other", "others")+in("ns", "own")+in("client", "clients"))))
	assert.Equal(t, "others", route(parse(t, in("other", "others"))))
	assert.Equal(t, "own", route(parse(t, in("other", "others")+in("", "own"))))
	assert.Equal(t, "short", route(parse(t, in("ns", "own")+"---\n{target: web.ns.svc.cluster.local, routes: [{name: short, match: {method: GET}}]}")))
}

func TestParseWeight(t *testing.T) {
	for text, want := range map[string]uint32{
		"1": 10000, "500m": 5000, "0": 0, "0.5": 5000, "1.": 10000, ".25": 2500, "1.5m": 20, "0.0001": 10, "100": 1000000,
		"429496.729": 4294967290, "0.0": 0, "900m": 9000, "1.005": 10050, "0.07": 700,
	} {
		got, ok := parseWeight(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "-1", "+2", "m", "2k", "1Ki", "1e2", "NaN", "inf", "1_0", ".", "1x", "1mm", "1..2", "1+1", "+-1", "1i", "1K", "e3", "1e", "1e99", "1e-99999", "1G", "0x1", "1/2", "1 ",
		"11111111111111111111111111111111111111111", "1ei", "429496.7291",
	} {
		_, ok := parseWeight(text)
		assert.False(t, ok, text)
	}
}
