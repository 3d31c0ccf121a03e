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
	require.Len(t, cfg.Destinations, 8)
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
					Name: "read", Labels: map[string]string{},
					Match: Match{
						Path: "/api/(list|leaderboard)",
						Any:  []Match{{Method: "GET"}, {Method: "HEAD"}},
						Not:  &Match{Path: "/api/private/.*"},
					},
				},
				{
					Name: "search", Labels: map[string]string{}, Match: Match{Method: "POST", Path: "/api/search"},
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
	got.Policy = nil // see TestPolicyMessages
	require.Equal(t, want, got)
	require.Equal(t, Destination{Absent: true, Labels: map[string]string{}, Endpoints: []Endpoint{}},
		cfg.Destinations["old.emojivoto.svc.cluster.local:80"])
	voting := cfg.Destinations["voting.emojivoto.svc.cluster.local:8080"].Endpoints
	require.Equal(t, []Endpoint{{
		Addr: addr("[::1]:8091"), Labels: map[string]string{}, Protocol: H2, Authority: "voting.internal:8080",
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
		{"nothing", "", `f.yaml:1: the file is empty; write "destinations: {}" for no destinations`},
		{"comments only", "# soon\n", `f.yaml:1: the file is empty; write "destinations: {}" for no destinations`},
		{"no destinations", "destinations:\n", `f.yaml:1: the file is empty; write "destinations: {}" for no destinations`},

		// The YAML itself.
		{"indentation", in("endpoints:\n      - addr: 10.0.0.1:80\n     - addr: 10.0.0.2:80\n"), `f.yaml:5: did not find expected key`},
		{"tab", "destinations:\n\tweb.test:80: {}\n", `f.yaml:2: found character that cannot start any token`},
		{"colon", "destinations:\n  web.test:80: exists: false\n", `f.yaml:2: mapping values are not allowed in this context`},
		{"open quote", in("exists: \"tr\n\n\n"), `f.yaml:3: found unexpected end of stream`},
		{"anchor", "destinations:\n  web.test:80: *base\n", `f.yaml:2: unknown anchor 'base' referenced`},
		{"not UTF-8", "destinations:\n  web\xff: {}\n", `f.yaml:2: byte 0xff is not UTF-8`},
		{"control character", "destinations: {}\n\n#\x07\n", `f.yaml:3: control character U+0007`},
		{"second document", "destinations: {}\n---\ndestinations: {}\n", `f.yaml:3: a second document is not allowed`},
		{"empty second document", "destinations: {}\n---", `f.yaml:2: a second document is not allowed`},
		{"empty item at the end", "destinations:\n  web.test:80:\n    endpoints:\n      -", `f.yaml:4: an empty item in a list`},
		{"not a mapping", "- web.test:80\n", `f.yaml:1: want a mapping, not a list`},
		{"not a list", in("endpoints: {addr: 10.0.0.1:80}\n"), `f.yaml:3: want a list, not a mapping`},
		{"not a list of mappings", in("endpoints: [10.0.0.1:80]\n"), `f.yaml:3: want a mapping, not a single value`},
		{"not a value", in("endpoints:\n      - addr: [10.0.0.1:80]\n"), `f.yaml:4: want a single value, not a list or a mapping`},
		{"empty item", in("endpoints:\n      - addr: 10.0.0.1:80\n      -\n"), `f.yaml:5: an empty item in a list`},
		{"empty key", "destinations:\n  ~: {}\n", `f.yaml:2: an empty key in a mapping`},
		{"empty item by alias", in("labels: {a: &nothing }\n    endpoints: [*nothing]\n"), `f.yaml:4: an empty item in a list`},
		{"in itself", route("match: &m\n            not: *m\n"), `f.yaml:7: *m is within &m itself`},
		{"many aliases", bomb(), `f.yaml:1: document contains excessive aliasing`},
		{"unknown top field", "destination: {}\n", `f.yaml:1: unknown field "destination"; there are destinations, servers, defaultInboundPolicy, clusterNetworks`},
		{"unknown field", in("endpoints:\n      - addr: 10.0.0.1:80\n        wieght: 1\n"), `f.yaml:5: unknown field "wieght"; there are addr, weight, labels, protocol, identity, server_name, authority, opaque_port`},
		{"unknown field of a match", route("match: {pfad: /}\n"), `f.yaml:6: unknown field "pfad"; there are method, path, all, any, not`},
		{"field twice", in("exists: true\n    exists: true\n"), `f.yaml:4: "exists" is given twice, first in line 3`},
		{"destination twice", "destinations:\n  web.test:80: {}\n  web.test:80: {}\n", `f.yaml:3: "web.test:80" is given twice, first in line 2`},
		{"label twice", in("labels:\n      a: x\n      a: y\n"), `f.yaml:5: "a" is given twice, first in line 4`},

		// Destinations.
		{"same name, other spelling", "destinations:\n  web.test:80: {}\n  other.test: {}\n  WEB.test.: {}\n", `f.yaml:4: destination "WEB.test." is given twice, first in line 2`},
		{"name", "destinations:\n  web..test:80: {}\n", `f.yaml:2: destination "web..test:80" is not host:port: name "web..test": a label is empty`},
		{"port", "destinations:\n  web.test:http: {}\n", `f.yaml:2: destination "web.test:http" is not host:port: port "http" is not a number from 1 to 65535`},
		{"mistyped address", "destinations:\n  10.0.0.300:80: {}\n", `f.yaml:2: destination "10.0.0.300:80" is not host:port: name "10.0.0.300" is neither a name nor an IP address`},
		{"exists", in("exists: yes\n"), `f.yaml:3: exists "yes" is neither true nor false`},
		{"absent, with endpoints", in("exists: false\n    endpoints: [{addr: 10.0.0.1:80}]\n"), `f.yaml:2: "web.test:80": does not exist, and must not have labels, endpoints, a profile or a policy`},
		{"address with endpoints", "destinations:\n  10.0.0.1:80:\n    endpoints: [{addr: 10.0.0.1:80}]\n", `f.yaml:2: "10.0.0.1:80": is an IP address, and must have only a profile, because addresses are not resolved`},
		{"label without a name", in("labels: {'': x}\n"), `f.yaml:3: a label must have a name`},

		// Endpoints.
		{"no addr", in("endpoints:\n      - weight: 1\n"), `f.yaml:4: the endpoint has no addr`},
		{"addr", in("endpoints:\n      - weight: 1\n        addr: 10.0.0.300:80\n"), `f.yaml:5: addr "10.0.0.300:80" is not ip:port`},
		{"addr is a name", in("endpoints: [{addr: localhost:80}]\n"), `f.yaml:3: addr "localhost:80" is not ip:port`},
		{"addr without port", in("endpoints: [{addr: 10.0.0.1}]\n"), `f.yaml:3: addr "10.0.0.1" is not ip:port`},
		{"port 0", in("endpoints: [{addr: 10.0.0.1:0}]\n"), `f.yaml:3: addr 10.0.0.1:0: the port must not be 0`},
		{"unspecified", in("endpoints: [{addr: 0.0.0.0:80}]\n"), `f.yaml:3: addr 0.0.0.0:80: must not be the unspecified address`},
		{"zone", in("endpoints: [{addr: '[fe80::1%eth0]:80'}]\n"), `f.yaml:3: addr [fe80::1%eth0]:80: must not have a zone`},
		{"addr twice", in("endpoints:\n      - addr: 10.0.0.1:80\n      - addr: '[::ffff:10.0.0.1]:80'\n"), `f.yaml:5: addr 10.0.0.1:80 is given twice, first in line 4`},
		{"weight", in("endpoints: [{addr: 10.0.0.1:80, weight: 1.5}]\n"), `f.yaml:3: weight "1.5" is not a whole number from 0 to 4294967295`},
		{"weight 0", in("endpoints: [{addr: 10.0.0.1:80, weight: 0}]\n"), `f.yaml:3: weight 0: leave the weight out for 10000, or leave the endpoint out`},
		{"weight too big", in("endpoints: [{addr: 10.0.0.1:80, weight: 4294967296}]\n"), `f.yaml:3: weight "4294967296" is not a whole number from 0 to 4294967295`},
		{"protocol", in("endpoints: [{addr: 10.0.0.1:80, protocol: H2}]\n"), `f.yaml:3: protocol "H2" must be "h2" or "opaque"`},
		{"identity", in("endpoints: [{addr: 10.0.0.1:80, identity: a b}]\n"), `f.yaml:3: identity: name "a b": ' ' is not allowed in a name`},
		{"identity URI", in("endpoints: [{addr: 10.0.0.1:80, server_name: a, identity: '://x'}]\n"), `f.yaml:3: identity "://x" must be a URI`},
		{"URI alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        identity: spiffe://td/x\n"), `f.yaml:5: identity "spiffe://td/x" is a URI and requires a server_name`},
		{"server name alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        server_name: a\n"), `f.yaml:5: server_name requires an identity`},
		{"server name", in("endpoints:\n      - server_name: -a\n        identity: b\n        addr: 10.0.0.1:80\n"), `f.yaml:4: server_name: name "-a": "-a" must not begin or end with a hyphen`},
		{"authority", in("endpoints: [{addr: 10.0.0.1:80, authority: 'a:0'}]\n"), `f.yaml:3: authority "a:0" is not host:port: port "0" is not a number from 1 to 65535`},

		// Profiles.
		{"profile name", in("profile: {name: web:80}\n"), `f.yaml:3: profile: name "web:80": ':' is not allowed in a name`},
		{"opaque", in("profile: {opaque: on}\n"), `f.yaml:3: opaque "on" is neither true nor false`},
		{"route without a name", in("profile:\n      routes:\n        - match: {path: /}\n"), `f.yaml:5: the route must have a name`},
		{"route label", route("match: {path: /}\n          labels: {route: x}\n"), `f.yaml:7: the label "route" is reserved for the route's name`},
		{"no match", route("timeout: 1s\n"), `f.yaml:5: "r": the match must have method, path, all, any or not (path /.* matches everything)`},
		{"empty match", route("match: {}\n"), `f.yaml:6: the match must have method, path, all, any or not (path /.* matches everything)`},
		{"empty any", route("match:\n            any: []\n"), `f.yaml:7: the match must have method, path, all, any or not (path /.* matches everything)`},
		{"method", route("match: {method: 'G T'}\n"), `f.yaml:6: method "G T": ' ' is not allowed in a method`},
		{"lower-case method", route("match: {method: get}\n"), `f.yaml:6: method "get": methods are case-sensitive, write GET`},
		{"regex", route("match:\n            any:\n              - path: /ok\n              - not: {path: '/a(b'}\n"), "f.yaml:9: path: error parsing regexp: missing closing ): `/a(b`"},
		{"regex in all", route("match: {all: [{path: '+'}]}\n"), "f.yaml:6: path: error parsing regexp: missing argument to repetition operator: `+`"},
		{"retry_non_idempotent", route("match: {path: /}\n          retry_non_idempotent: true\n"), `f.yaml:7: retry_non_idempotent requires retryable: true`},
		{"retryable", route("match: {path: /}\n          retryable: maybe\n"), `f.yaml:7: retryable "maybe" is neither true nor false`},
		{"timeout", route("match: {path: /}\n          timeout: 5\n"), `f.yaml:7: timeout "5" is not a duration, such as 250ms or 10s`},
		{"timeout 0", route("match: {path: /}\n          timeout: 0s\n"), `f.yaml:7: timeout 0s: want more than 0, or leave it out`},
		{"class without status", route("match: {path: /}\n          response_classes: [{is_failure: true}]\n"), `f.yaml:7: the response class has no status`},
		{"status", route("match: {path: /}\n          response_classes: [{status: 5xx}]\n"), `f.yaml:7: status "5xx" is neither a number nor a range such as 500-599`},
		{"status range", route("match: {path: /}\n          response_classes: [{status: 599-500}]\n"), `f.yaml:7: status 599-500 must be a range within 100-999`},
		{"is_failure", route("match: {path: /}\n          response_classes: [{status: 500, is_failure: 1}]\n"), `f.yaml:7: is_failure "1" is neither true nor false`},
		{"inbound port", in("endpoints:\n      - addr: 10.0.0.1:80\n        identity: a\n        opaque_port: 0\n"), `f.yaml:6: opaque_port: port "0" is not a number from 1 to 65535`},
		{"inbound port alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        opaque_port: 4143\n"), `f.yaml:5: opaque_port requires an identity`},
		{"exact endpoint", strings.Replace(in("profile:\n      endpoint:\n        addr: 10.0.0.1\n"), "web.test", "10.0.0.1", 1), `f.yaml:5: addr "10.0.0.1" is not ip:port`},
		{"endpoint of a name", in("profile:\n      endpoint:\n        addr: 10.0.0.1:80\n"), `f.yaml:2: "web.test:80": has a name, so clients would ignore the endpoint of its profile`},
		{"split without port", in("profile: {splits: [{authority: a, weight: 1}]}\n"), `f.yaml:3: split: "a" must have a port`},
		{"split without authority", in("profile: {splits: [{weight: 1}]}\n"), `f.yaml:3: the split has no authority`},
		{"split without weight", in("profile: {splits: [{authority: 'a:80'}]}\n"), `f.yaml:3: the split has no weight`},
		{"split", in("profile: {splits: [{authority: 'a:b', weight: 1}]}\n"), `f.yaml:3: split: "a:b" is not host:port: port "b" is not a number from 1 to 65535`},
		{"split to an address", in("profile: {splits: [{authority: '10.0.0.1:80', weight: 1}]}\n"), `f.yaml:3: split: "10.0.0.1:80" must be a name, not an IP address`},
		{"split weight", in("profile: {splits: [{authority: 'a:80', weight: -1}]}\n"), `f.yaml:3: weight "-1" is not a whole number from 0 to 4294967295`},
		{"ratio", in("profile: {retry_budget: {ratio: x}}\n"), `f.yaml:3: ratio "x" is not a number`},
		{"ratio range", in("profile: {retry_budget: {ratio: NaN}}\n"), `f.yaml:3: ratio NaN must be a number from 0 to 1000`},
		{"min_per_second", in("profile: {retry_budget: {min_per_second: 2147483648}}\n"), `f.yaml:3: min_per_second 2147483648 must be at most 2147483647`},
		{"ttl", in("profile: {retry_budget: {ttl: 61s}}\n"), `f.yaml:3: ttl 1m1s must be from 1s to 1m`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("f.yaml", []byte(c.yaml))
			require.EqualError(t, err, c.want)
			assert.Empty(t, cfg, "a bad file gives no part of a configuration")
			var e *FileError
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
		`f.yaml:4: addr "nowhere" is not ip:port`,
		`f.yaml:5: weight "heavy" is not a whole number from 0 to 4294967295`,
		`f.yaml:7: protocol "http" must be "h2" or "opaque"`,
		`f.yaml:11: method "post": methods are case-sensitive, write POST`,
		"f.yaml:11: path: error parsing regexp: missing closing ]: `[`",
		`f.yaml:12: destination "" is not host:port: the name must not be empty`,
		`f.yaml:12: exists "perhaps" is neither true nor false`,
	}, "\n"))
}

// Fields in a part that could not be decoded are not reported as missing.
func TestParsePartialYAML(t *testing.T) {
	_, err := Parse("f.yaml", []byte(in("endpoints:\n      - {addr: 10.0.0.1:80, addr: 10.0.0.1:80}\n      - {weight: x}\n")))
	require.EqualError(t, err, `f.yaml:4: "addr" is given twice, first in line 4`+"\n"+
		`f.yaml:5: weight "x" is not a whole number from 0 to 4294967295`)
}

func TestLoadMissingFile(t *testing.T) {
	_, _, err := New(nil).Load(t.TempDir() + "/none.yaml")
	require.ErrorContains(t, err, "none.yaml")
	var e *FileError
	require.NotErrorAs(t, err, &e)
}
