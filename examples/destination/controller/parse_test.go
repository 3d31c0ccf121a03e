package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseExampleFile(t *testing.T) {
	cfg, _, err := New(nil).Load("../destination.yaml")
	require.NoError(t, err)
	require.Len(t, cfg.Destinations, 9)
	require.NoError(t, New(nil).Set(cfg))

	want := Destination{
		Labels: map[string]string{"namespace": "emojivoto", "service": "web"},
		Endpoints: []Endpoint{
			{Addr: addr("127.0.0.1:8081"), Labels: map[string]string{"pod": "web-1", "zone": "a"}},
			{Addr: addr("127.0.0.1:8082"), Labels: map[string]string{"pod": "web-2", "zone": "b"}, Weight: 20000},
		},
		Profile: &Profile{
			Routes: []Route{
				{
					Name: "vote", Match: Match{Method: "GET", Path: "/api/vote"},
					Labels: map[string]string{"team": "ballot"}, Retryable: true, Timeout: 5 * time.Second,
					Classes: []ResponseClass{{Min: 404, Max: 404}, {Min: 500, Max: 599, Failure: true}},
				},
				{
					Name: "read",
					Match: Match{
						Path: "/api/(list|leaderboard)",
						Any:  []Match{{Method: "GET"}, {Method: "HEAD"}},
						Not:  &Match{Path: "/api/private/.*"},
					},
				},
				{
					Name: "search", Match: Match{Method: "POST", Path: "/api/search"},
					Retryable: true, RetryNonIdempotent: true,
				},
			},
			Splits: []Split{
				{Authority: "web.emojivoto.svc.cluster.local:80", Weight: 900},
				{Authority: "web-next.emojivoto.svc.cluster.local:80", Weight: 100},
			},
			Budget: &RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second},
		},
	}
	got := cfg.Destinations["web.emojivoto.svc.cluster.local:80"]
	got.Policy = nil // see TestOutboundPolicyMessages
	require.Equal(t, want, got)
	require.Equal(t, Destination{Absent: true},
		cfg.Destinations["old.emojivoto.svc.cluster.local:80"])
	voting := cfg.Destinations["voting.emojivoto.svc.cluster.local:8080"].Endpoints
	require.Equal(t, []Endpoint{{
		Addr: addr("[::1]:8091"), Protocol: H2, Authority: "voting.internal:8080",
		Identity: "voting.emojivoto.serviceaccount.identity.linkerd.cluster.local",
	}}, voting)
}

func TestParseDefaults(t *testing.T) {
	cfg, err := Parse("f", []byte("destinations: {}"))
	require.NoError(t, err)
	require.Empty(t, cfg.Destinations)

	cfg, err = Parse("f", []byte("destinations: {a.test: {profile: {retry_budget: {}}}}"))
	require.NoError(t, err)
	require.Equal(t, &RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: 10 * time.Second}, cfg.Destinations["a.test"].Profile.Budget)
}

func TestParseAnchorsAndMerges(t *testing.T) {
	cfg, err := Parse("f", []byte(`
destinations:
  a.test:80:
    endpoints:
      - &base {addr: 10.0.0.1:80, weight: 7, labels: &labels {zone: a, pod: x}}
  b.test:80:
    endpoints:
      - <<: *base
        addr: 10.0.0.2:80
        labels: {<<: *labels, pod: y}
`))
	require.NoError(t, err)
	require.Equal(t, []Endpoint{{Addr: addr("10.0.0.2:80"), Weight: 7, Labels: map[string]string{"zone": "a", "pod": "y"}}},
		cfg.Destinations["b.test:80"].Endpoints)
}

// in puts lines below a destination that begins in line 2.
func in(lines string) string { return "destinations:\n  web.test:80:\n    " + lines }

// route puts lines below a route that begins in line 5, column 9.
func route(lines string) string {
	return in("profile:\n      routes:\n        - name: r\n          " + lines)
}

// bomb is a small file that would be a large configuration.
func bomb() string {
	match := "match: {any: [{path: /a}, {any: &b0 [{path: /b}]}"
	for i := range 9 {
		match += fmt.Sprintf(", {any: &b%d [%s]}", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("{any: *b%d}, ", i), 9), ", "))
	}
	return route(match + "]}\n")
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"nothing", "", `f.yaml:1: the file is empty: for no destinations, write "destinations: {}"`},
		{"comments only", "# soon\n", `f.yaml:1: the file is empty: for no destinations, write "destinations: {}"`},
		{"no destinations", "destinations:\n", `f.yaml:1:14: destinations: missing: destinations is required`},

		// The YAML itself.
		{"indentation", in("endpoints:\n      - addr: 10.0.0.1:80\n     - addr: 10.0.0.2:80\n"), `f.yaml:5: not YAML: did not find expected key`},
		{"tab", "destinations:\n\tweb.test:80: {}\n", `f.yaml:2: not YAML: found character that cannot start any token`},
		{"colon", "destinations:\n  web.test:80: exists: false\n", `f.yaml:2: not YAML: mapping values are not allowed in this context`},
		{"open quote", in("exists: \"tr\n\n\n"), `f.yaml:3: not YAML: found unexpected end of stream`},
		{"anchor", "destinations:\n  web.test:80: *base\n", `f.yaml:2: not YAML: unknown anchor 'base' referenced`},
		{"not UTF-8", "destinations:\n  web\xff: {}\n", `f.yaml:2: not YAML: invalid leading UTF-8 octet`},
		{"control character", "destinations: {}\n\n#\x07\n", `f.yaml:3: not YAML: control characters are not allowed`},
		{"second document", "destinations: {}\n---\ndestinations: {}\n", `f.yaml:3:1: a second document: a file is one`},
		{"empty second document", "destinations: {}\n---", `f.yaml:2:1: a second document: a file is one`},
		{"empty item at the end", "destinations:\n  web.test:80:\n    endpoints:\n      -", `f.yaml:4:8: destinations["web.test:80"].endpoints[0]: empty: write a value, or take it out`},
		{"not a mapping", "- web.test:80\n", `f.yaml:1:1: want a mapping, not a list`},
		{"not a list", in("endpoints: {addr: 10.0.0.1:80}\n"), `f.yaml:3:16: destinations["web.test:80"].endpoints: want a list, not a mapping`},
		{"not a list of mappings", in("endpoints: [10.0.0.1:80]\n"), `f.yaml:3:17: destinations["web.test:80"].endpoints[0] "10.0.0.1:80": want a mapping, not a single value`},
		{"not a value", in("endpoints:\n      - addr: [10.0.0.1:80]\n"), `f.yaml:4:15: destinations["web.test:80"].endpoints[0].addr: want a single value, not a list`},
		{"empty item", in("endpoints:\n      - addr: 10.0.0.1:80\n      -\n"), `f.yaml:5:8: destinations["web.test:80"].endpoints[1]: empty: write a value, or take it out`},
		{"empty key", "destinations:\n  ~: {}\n", `f.yaml:2:3: destinations: no value: write one, or "" for an empty one`},
		{"empty item by alias", in("labels: {a: &nothing }\n    endpoints: [*nothing]\n"), `f.yaml:3:17: destinations["web.test:80"].endpoints[0]: empty: write a value, or take it out`},
		{"in itself", route("match: &m\n            not: *m\n"), `f.yaml:7:18: *m is within &m itself`},
		{"many aliases", bomb(), `f.yaml:6:109: the aliases make the document too large: write out the values`},
		{"nested", route("match: " + strings.Repeat("{not: ", 300) + "{path: /}" + strings.Repeat("}", 300) + "\n"), "f.yaml:6:1440: destinations[\"web.test:80\"].profile.routes[0].match" + strings.Repeat(".not", 237) + ": want method, path, all, any or not; path: /.* matches everything\n" +
			"f.yaml:6:1446: destinations[\"web.test:80\"].profile.routes[0].match" + strings.Repeat(".not", 238) + ": nested too deeply"},
		{"unknown top field", "destination: {}\n", "f.yaml:1:1: destination: unknown field: there are clusterNetworks, defaultInboundPolicy, destinations, servers\nf.yaml:1:1: destinations: missing: destinations is required"},
		{"unknown field", in("endpoints:\n      - addr: 10.0.0.1:80\n        wieght: 1\n"), `f.yaml:5:9: destinations["web.test:80"].endpoints[0].wieght: unknown field: there are addr, authority, identity, labels, opaque_port, protocol, server_name, weight`},
		{"unknown field of a match", route("match: {pfad: /}\n"), "f.yaml:6:18: destinations[\"web.test:80\"].profile.routes[0].match: want method, path, all, any or not; path: /.* matches everything\nf.yaml:6:19: destinations[\"web.test:80\"].profile.routes[0].match.pfad: unknown field: there are all, any, method, not, path"},
		{"field twice", in("exists: true\n    exists: true\n"), `f.yaml:4:5: destinations["web.test:80"].exists: given twice, first in line 3: take one out`},
		{"destination twice", "destinations:\n  web.test:80: {}\n  web.test:80: {}\n", `f.yaml:3:3: destinations["web.test:80"]: given twice, first in line 2: take one out`},
		{"label twice", in("labels:\n      a: x\n      a: y\n"), `f.yaml:5:7: destinations["web.test:80"].labels.a: given twice, first in line 4: take one out`},

		// Destinations.
		{"same name, other spelling", "destinations:\n  web.test:80: {}\n  other.test: {}\n  WEB.test.: {}\n", `f.yaml:2:16: destinations["web.test:80"]: the same destination as "WEB.test.", in another spelling: take one out`},
		{"name", "destinations:\n  web..test:80: {}\n", `f.yaml:2:17: destinations["web..test:80"]: "web..test:80" is not host:port: a label is empty`},
		{"port", "destinations:\n  web.test:http: {}\n", `f.yaml:2:18: destinations["web.test:http"]: "web.test:http" is not host:port: port "http" is not a number from 1 to 65535`},
		{"mistyped address", "destinations:\n  10.0.0.300:80: {}\n", `f.yaml:2:18: destinations["10.0.0.300:80"]: "10.0.0.300:80" is not host:port: "10.0.0.300" is neither a name nor an IP address`},
		{"exists", in("exists: yes\n"), `f.yaml:3:13: destinations["web.test:80"].exists "yes": want true or false`},
		{"absent, with endpoints", in("exists: false\n    endpoints: [{addr: 10.0.0.1:80}]\n"), `f.yaml:3:5: destinations["web.test:80"]: the destination does not exist: want no labels, endpoints, profile and policy`},
		{"address with endpoints", "destinations:\n  10.0.0.1:80:\n    endpoints: [{addr: 10.0.0.1:80}]\n", `f.yaml:3:5: destinations["10.0.0.1:80"]: an IP address is not resolved: want only a profile and a policy`},
		{"label without a name", in("labels: {'': x}\n"), `f.yaml:3:13: destinations["web.test:80"].labels: a label without a name`},

		// Endpoints.
		{"no addr", in("endpoints:\n      - weight: 1\n"), `f.yaml:4:9: destinations["web.test:80"].endpoints[0].addr: missing: addr is required`},
		{"addr", in("endpoints:\n      - weight: 1\n        addr: 10.0.0.300:80\n"), `f.yaml:5:15: destinations["web.test:80"].endpoints[0].addr "10.0.0.300:80": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`},
		{"addr is a name", in("endpoints: [{addr: localhost:80}]\n"), `f.yaml:3:24: destinations["web.test:80"].endpoints[0].addr "localhost:80": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`},
		{"addr without port", in("endpoints: [{addr: 10.0.0.1}]\n"), `f.yaml:3:24: destinations["web.test:80"].endpoints[0].addr "10.0.0.1": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`},
		{"port 0", in("endpoints: [{addr: 10.0.0.1:0}]\n"), `f.yaml:3:24: destinations["web.test:80"].endpoints[0].addr "10.0.0.1:0": want a port from 1 to 65535`},
		{"unspecified", in("endpoints: [{addr: 0.0.0.0:80}]\n"), `f.yaml:3:24: destinations["web.test:80"].endpoints[0].addr "0.0.0.0:80": want an address to which clients can connect`},
		{"zone", in("endpoints: [{addr: '[fe80::1%eth0]:80'}]\n"), `f.yaml:3:24: destinations["web.test:80"].endpoints[0].addr "[fe80::1%eth0]:80": want an address without a zone`},
		{"addr twice", in("endpoints:\n      - addr: 10.0.0.1:80\n      - addr: '[::ffff:10.0.0.1]:80'\n"), `f.yaml:5:15: destinations["web.test:80"].endpoints[1].addr "[::ffff:10.0.0.1]:80": the address of endpoints[0]: take one out`},
		{"weight", in("endpoints: [{addr: 10.0.0.1:80, weight: 1.5}]\n"), `f.yaml:3:45: destinations["web.test:80"].endpoints[0].weight "1.5": want a whole number from 1 to 4294967295`},
		{"weight 0", in("endpoints: [{addr: 10.0.0.1:80, weight: 0}]\n"), `f.yaml:3:45: destinations["web.test:80"].endpoints[0].weight "0": want a whole number from 1 to 4294967295`},
		{"weight too big", in("endpoints: [{addr: 10.0.0.1:80, weight: 4294967296}]\n"), `f.yaml:3:45: destinations["web.test:80"].endpoints[0].weight "4294967296": want a whole number from 1 to 4294967295`},
		{"protocol", in("endpoints: [{addr: 10.0.0.1:80, protocol: H2}]\n"), `f.yaml:3:47: destinations["web.test:80"].endpoints[0].protocol "H2": want one of h2, opaque`},
		{"identity", in("endpoints: [{addr: 10.0.0.1:80, identity: a b}]\n"), `f.yaml:3:47: destinations["web.test:80"].endpoints[0].identity "a b": ' ' is not allowed in a name`},
		{"identity URI", in("endpoints: [{addr: 10.0.0.1:80, server_name: a, identity: '://x'}]\n"), `f.yaml:3:63: destinations["web.test:80"].endpoints[0].identity "://x": want a URI such as spiffe://cluster.local/ns/shop/sa/web`},
		{"URI alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        identity: spiffe://td/x\n"), `f.yaml:4:9: destinations["web.test:80"].endpoints[0].server_name: missing: an identity that is a URI requires it`},
		{"server name alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        server_name: a\n"), `f.yaml:5:22: destinations["web.test:80"].endpoints[0].server_name "a": it requires an identity`},
		{"server name", in("endpoints:\n      - server_name: -a\n        identity: b\n        addr: 10.0.0.1:80\n"), `f.yaml:4:22: destinations["web.test:80"].endpoints[0].server_name "-a": "-a" must not begin or end with a hyphen`},
		{"authority", in("endpoints: [{addr: 10.0.0.1:80, authority: 'a:0'}]\n"), `f.yaml:3:48: destinations["web.test:80"].endpoints[0].authority "a:0": "a:0" is not host:port: port "0" is not a number from 1 to 65535`},

		// Profiles.
		{"profile name", in("profile: {name: web:80}\n"), `f.yaml:3:21: destinations["web.test:80"].profile.name "web:80": ':' is not allowed in a name`},
		{"opaque", in("profile: {opaque: on}\n"), `f.yaml:3:23: destinations["web.test:80"].profile.opaque "on": want true or false`},
		{"route without a name", in("profile:\n      routes:\n        - match: {path: /}\n"), `f.yaml:5:11: destinations["web.test:80"].profile.routes[0].name: missing: name is required`},
		{"route label", route("match: {path: /}\n          labels: {route: x}\n"), `f.yaml:7:27: destinations["web.test:80"].profile.routes[0].labels.route "x": this label is the name of the route: take it out`},
		{"no match", route("timeout: 1s\n"), `f.yaml:5:11: destinations["web.test:80"].profile.routes[0].match: missing: match is required`},
		{"empty match", route("match: {}\n"), `f.yaml:6:18: destinations["web.test:80"].profile.routes[0].match: want method, path, all, any or not; path: /.* matches everything`},
		{"empty any", route("match:\n            any: []\n"), `f.yaml:7:13: destinations["web.test:80"].profile.routes[0].match: want method, path, all, any or not; path: /.* matches everything`},
		{"method", route("match: {method: 'G T'}\n"), `f.yaml:6:27: destinations["web.test:80"].profile.routes[0].match.method "G T": ' ' is not allowed in a method`},
		{"lower-case method", route("match: {method: get}\n"), `f.yaml:6:27: destinations["web.test:80"].profile.routes[0].match.method "get": methods are case-sensitive: write GET`},
		{"regex", route("match:\n            any:\n              - path: /ok\n              - not: {path: '/a(b'}\n"), "f.yaml:9:29: destinations[\"web.test:80\"].profile.routes[0].match.any[1].not.path \"/a(b\": error parsing regexp: missing closing ): `/a(b`"},
		{"regex in all", route("match: {all: [{path: '+'}]}\n"), "f.yaml:6:32: destinations[\"web.test:80\"].profile.routes[0].match.all[0].path \"+\": error parsing regexp: missing argument to repetition operator: `+`"},
		{"retry_non_idempotent", route("match: {path: /}\n          retry_non_idempotent: true\n"), `f.yaml:7:33: destinations["web.test:80"].profile.routes[0].retry_non_idempotent "true": it requires retryable: true`},
		{"retryable", route("match: {path: /}\n          retryable: maybe\n"), `f.yaml:7:22: destinations["web.test:80"].profile.routes[0].retryable "maybe": want true or false`},
		{"timeout", route("match: {path: /}\n          timeout: 5\n"), `f.yaml:7:20: destinations["web.test:80"].profile.routes[0].timeout "5": want a duration of more than 0, such as 250ms or 10s`},
		{"timeout 0", route("match: {path: /}\n          timeout: 0s\n"), `f.yaml:7:20: destinations["web.test:80"].profile.routes[0].timeout "0s": want a duration of more than 0, such as 250ms or 10s`},
		{"class without status", route("match: {path: /}\n          response_classes: [{is_failure: true}]\n"), `f.yaml:7:30: destinations["web.test:80"].profile.routes[0].response_classes[0].status: missing: status is required`},
		{"status", route("match: {path: /}\n          response_classes: [{status: 5xx}]\n"), `f.yaml:7:39: destinations["web.test:80"].profile.routes[0].response_classes[0].status "5xx": want a status such as 404, or a range such as 500-599`},
		{"status range", route("match: {path: /}\n          response_classes: [{status: 599-500}]\n"), `f.yaml:7:39: destinations["web.test:80"].profile.routes[0].response_classes[0].status "599-500": want a range within 100-999`},
		{"is_failure", route("match: {path: /}\n          response_classes: [{status: 500, is_failure: 1}]\n"), `f.yaml:7:56: destinations["web.test:80"].profile.routes[0].response_classes[0].is_failure "1": want true or false`},
		{"inbound port", in("endpoints:\n      - addr: 10.0.0.1:80\n        identity: a\n        opaque_port: 0\n"), `f.yaml:6:22: destinations["web.test:80"].endpoints[0].opaque_port "0": want a whole number from 1 to 65535`},
		{"inbound port alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        opaque_port: 4143\n"), `f.yaml:5:22: destinations["web.test:80"].endpoints[0].opaque_port "4143": it requires an identity`},
		{"exact endpoint", strings.Replace(in("profile:\n      endpoint:\n        addr: 10.0.0.1\n"), "web.test", "10.0.0.1", 1), `f.yaml:5:15: destinations["10.0.0.1:80"].profile.endpoint.addr "10.0.0.1": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`},
		{"endpoint of a name", in("profile:\n      endpoint:\n        addr: 10.0.0.1:80\n"), `f.yaml:5:9: destinations["web.test:80"].profile.endpoint: clients ignore it, because the destination has a name: take it out`},
		{"split without port", in("profile: {splits: [{authority: a, weight: 1}]}\n"), `f.yaml:3:36: destinations["web.test:80"].profile.splits[0].authority "a": want a name with a port, such as web.shop.svc.cluster.local:80`},
		{"split without authority", in("profile: {splits: [{weight: 1}]}\n"), `f.yaml:3:24: destinations["web.test:80"].profile.splits[0].authority: missing: authority is required`},
		{"split without weight", in("profile: {splits: [{authority: 'a:80'}]}\n"), `f.yaml:3:24: destinations["web.test:80"].profile.splits[0].weight: missing: weight is required`},
		{"split", in("profile: {splits: [{authority: 'a:b', weight: 1}]}\n"), `f.yaml:3:36: destinations["web.test:80"].profile.splits[0].authority "a:b": "a:b" is not host:port: port "b" is not a number from 1 to 65535`},
		{"split to an address", in("profile: {splits: [{authority: '10.0.0.1:80', weight: 1}]}\n"), `f.yaml:3:36: destinations["web.test:80"].profile.splits[0].authority "10.0.0.1:80": want a name with a port, not an IP address`},
		{"split weight", in("profile: {splits: [{authority: 'a:80', weight: -1}]}\n"), `f.yaml:3:52: destinations["web.test:80"].profile.splits[0].weight "-1": want a whole number from 0 to 4294967295`},
		{"ratio", in("profile: {retry_budget: {ratio: x}}\n"), `f.yaml:3:37: destinations["web.test:80"].profile.retry_budget.ratio "x": want a number from 0 to 1000`},
		{"ratio range", in("profile: {retry_budget: {ratio: NaN}}\n"), `f.yaml:3:37: destinations["web.test:80"].profile.retry_budget.ratio "NaN": want a number from 0 to 1000`},
		{"min_per_second", in("profile: {retry_budget: {min_per_second: 2147483648}}\n"), `f.yaml:3:46: destinations["web.test:80"].profile.retry_budget.min_per_second "2147483648": want a whole number from 0 to 2147483647`},
		{"ttl", in("profile: {retry_budget: {ttl: 61s}}\n"), `f.yaml:3:35: destinations["web.test:80"].profile.retry_budget.ttl "61s": want a duration from 1s to 1m`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("f.yaml", []byte(c.yaml))
			require.EqualError(t, err, c.want)
			assert.Empty(t, cfg, "a bad file gives no part of a configuration")
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "f.yaml", e.File)
		})
	}
}

func TestParseErrorOrder(t *testing.T) {
	_, err := Parse("f.yaml", []byte(`destinations:
  web.test:80:
    endpoints:
      - addr: nowhere
        weight: heavy
      - addr: 10.0.0.2:80
        protocol: http
    profile:
      routes:
        - name: vote
          match: {method: post, path: "["}
  "": {exists: perhaps}
`))
	require.EqualError(t, err, strings.Join([]string{
		`f.yaml:4:15: destinations["web.test:80"].endpoints[0].addr "nowhere": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`,
		`f.yaml:5:17: destinations["web.test:80"].endpoints[0].weight "heavy": want a whole number from 1 to 4294967295`,
		`f.yaml:7:19: destinations["web.test:80"].endpoints[1].protocol "http": want one of h2, opaque`,
		`f.yaml:11:27: destinations["web.test:80"].profile.routes[0].match.method "post": methods are case-sensitive: write POST`,
		"f.yaml:11:39: destinations[\"web.test:80\"].profile.routes[0].match.path \"[\": error parsing regexp: missing closing ]: `[`",
		`f.yaml:12:7: destinations[""]: "" is not host:port: the name must not be empty`,
		`f.yaml:12:16: destinations[""].exists "perhaps": want true or false`,
	}, "\n"))
}

// The parts of a file with mistakes are read, too. A field with a mistake is not reported twice.
func TestParsePartialYAML(t *testing.T) {
	_, err := Parse("f.yaml", []byte(in("endpoints:\n      - {addr: 10.0.0.1:80, addr: 10.0.0.1:80}\n      - {weight: x}\n      - []\n      - {addr: x}\n")))
	require.EqualError(t, err, strings.Join([]string{
		`f.yaml:4:29: destinations["web.test:80"].endpoints[0].addr: given twice, first in line 4: take one out`,
		`f.yaml:5:9: destinations["web.test:80"].endpoints[1].addr: missing: addr is required`,
		`f.yaml:5:18: destinations["web.test:80"].endpoints[1].weight "x": want a whole number from 1 to 4294967295`,
		`f.yaml:6:9: destinations["web.test:80"].endpoints[2]: want a mapping, not a list`,
		`f.yaml:7:16: destinations["web.test:80"].endpoints[3].addr "x": want an IP address with a port, such as 10.0.0.1:80 or [fd00::1]:80`,
	}, "\n"))
}

func TestLoadMissingFile(t *testing.T) {
	_, _, err := New(nil).Load(t.TempDir() + "/none.yaml")
	require.ErrorContains(t, err, "none.yaml")
	var e *Error
	require.NotErrorAs(t, err, &e)
}
