package file

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/resolve"
)

// in puts lines below a target that begins in line 2.
func in(lines string) string { return "destinations:\n  web:80:\n    " + lines }

// one puts fields into an endpoint of line 3.
func one(fields string) string { return in("endpoints: [{addr: 10.0.0.1:80, " + fields + "}]\n") }

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestParse(t *testing.T) {
	got, err := Parse("f", []byte(`
destinations:
  web:80:
    labels: {service: web, zone: none}
    endpoints:
      - addr: "[fd00::1]:80"
        protocol: h2
        identity: web.default.example
        server_name: web.default
        authority: web.internal:80
        opaque_port: 4143
        ping_interval: 10s
        ping_timeout: 3s
        ping_while_idle: true
      - addr: 10.0.0.1:80
        weight: 20000
        labels: {pod: web-1, zone: a}
        priority: 1
        locality: eu-1a
        locality_weight: 3
  named:80:
    endpoints:
      - {addr: "[::ffff:10.0.0.2]:80", identity: named.example, protocol: opaque}
      - {addr: 10.0.0.1:80, identity: "spiffe://td/x", server_name: x, protocol: unknown}
      - {addr: "[fe80::1%eth0]:80", server_name: plain.example, labels: {n: 007, b: yes}}
  idle: {}
  "null":
  nulls: {labels: , endpoints: }
  old: {exists: false}
  new: {exists: true}
`))
	require.NoError(t, err)
	require.Equal(t, map[string][]resolve.Endpoint{
		"web:80": {
			{
				ID:     resolve.ID{Addr: addr("10.0.0.1:80")},
				Weight: 20000, Labels: map[string]string{"service": "web", "pod": "web-1", "zone": "a"},
				Priority: 1, Locality: "eu-1a", LocalityWeight: 3,
			},
			{
				ID: resolve.ID{
					Addr: addr("[fd00::1]:80"), Protocol: resolve.H2, Identity: "web.default.example",
					ServerName: "web.default", Authority: "web.internal:80", OpaquePort: 4143,
					PingInterval: 10 * time.Second, PingTimeout: 3 * time.Second, PingWhileIdle: true,
				},
				Labels: map[string]string{"service": "web", "zone": "none"},
			},
		},
		"named:80": {
			{ID: resolve.ID{Addr: addr("10.0.0.1:80"), Identity: "spiffe://td/x", ServerName: "x"}},
			{ID: resolve.ID{Addr: addr("10.0.0.2:80"), Identity: "named.example", ServerName: "named.example", Protocol: resolve.Opaque}},
			{
				ID:     resolve.ID{Addr: addr("[fe80::1%eth0]:80"), ServerName: "plain.example"},
				Labels: map[string]string{"n": "007", "b": "yes"},
			},
		},
		"idle": nil, "null": nil, "nulls": nil, "new": nil,
	}, got)
}

func TestParseJSON(t *testing.T) {
	got, err := Parse("f", []byte("{\n\t\"destinations\":{\"web:80\":{\"endpoints\":[\r\n\t\t{\"addr\":\"10.0.0.1:80\",\"weight\":7,"+
		"\"labels\":{\"a/b\":\"\\u00e4\\n\\\"\\\\/😀\",\"c\":true}}]},\"none\":{\"endpoints\":[]}}}"))
	require.NoError(t, err)
	require.Equal(t, map[string][]resolve.Endpoint{
		"web:80": {{ID: resolve.ID{Addr: addr("10.0.0.1:80")}, Weight: 7, Labels: map[string]string{"a/b": "ä\n\"\\/😀", "c": "true"}}},
		"none":   {},
	}, got)

	got, err = Parse("f", []byte("destinations: {}"))
	require.NoError(t, err)
	require.NotNil(t, got)
	require.Empty(t, got)
}

// The endpoints in the file of the example controller, without the fields that only the
// controller reads.
func TestParseControllerFile(t *testing.T) {
	data, err := os.ReadFile("../../examples/destination/destination.yaml")
	require.NoError(t, err)
	_, err = Parse("d.yaml", data)
	require.ErrorContains(t, err, "profile: unknown field")

	var file struct {
		Destinations map[string]map[string]any `yaml:"destinations"`
	}
	require.NoError(t, yaml.Unmarshal(data, &file))
	for _, target := range file.Destinations {
		delete(target, "profile")
		delete(target, "policy")
	}
	data, err = yaml.Marshal(file)
	require.NoError(t, err)
	got, err := Parse("d.yaml", data)
	require.NoError(t, err)
	require.Len(t, got, 8)
	require.Len(t, got["web.emojivoto.svc.cluster.local:80"], 2)
	require.Equal(t, map[string]string{"namespace": "emojivoto", "service": "web", "pod": "web-2", "zone": "b"},
		got["web.emojivoto.svc.cluster.local:80"][1].Labels)
}

func TestParseMistakes(t *testing.T) {
	const none = `f:1: there is nothing in the file; for no targets, write "destinations: {}"`
	const fields = "addr, authority, identity, labels, locality, locality_weight, opaque_port, ping_interval, ping_timeout, ping_while_idle, priority, protocol, server_name, weight"
	const noAddr = "not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80"
	for _, c := range []struct{ name, yaml, want string }{
		{"nothing", "", none},
		{"comments only", "# soon\n", none},
		{"null", "---\n", none},
		{"empty mapping", "{}", none},
		{"no destinations", "destinations:\n", none},

		{"indentation", in("endpoints:\n      - addr: 10.0.0.1:80\n     - addr: 10.0.0.2:80\n"), `f:5: not YAML: did not find expected key`},
		{"tab", "destinations:\n\tweb: {}\n", `f:2: not YAML: found character that cannot start any token`},
		{"colon", "destinations:\n  web: exists: false\n", `f:2: not YAML: mapping values are not allowed in this context`},
		{"open quote", in("exists: \"tr\n\n\n"), `f:3: not YAML: found unexpected end of stream`},
		{"open brace", "{\"destinations\":\n {\"web\": {}\n", `f:2: not YAML: did not find expected ',' or '}'`},
		{"half a character in JSON", `{"destinations":` + "\n" + `{"\ud83d": {}}}`, `f:2: not YAML: found invalid Unicode character escape code`},
		{"not UTF-8", "destinations:\n  web\xff: {}\n", `f:2: not YAML: invalid leading UTF-8 octet`},
		{"control character", "destinations: {}\n\n#\x07\n", `f:3: not YAML: control characters are not allowed`},
		{"second document", "destinations: {}\n---\ndestinations: {}\n", `f:3:1: another document: a file is one`},
		{"a mistake in a second document", "destinations: {}\n---\n\n}", `f:4: not YAML: did not find expected node content`},

		{"not a mapping", "- web\n", `f:1:1: want a mapping, not a list`},
		{"destinations a list", "destinations: [web]\n", `f:1:15: destinations: want a mapping, not a list`},
		{"target a value", "destinations:\n  web: 10.0.0.1:80\n", `f:2:8: destinations.web "10.0.0.1:80": want a mapping, not a single value`},
		{"endpoints a mapping", in("endpoints: {addr: 10.0.0.1:80}\n"), `f:3:16: destinations.web:80.endpoints: want a list, not a mapping`},
		{"endpoint a value", in("endpoints: [10.0.0.1:80]\n"), `f:3:17: destinations.web:80.endpoints[0] "10.0.0.1:80": want a mapping, not a single value`},
		{"empty item", in("endpoints:\n      -\n"), `f:4:8: destinations.web:80.endpoints[0]: an empty item in the list of endpoints: take it out, or write addr: 10.0.0.1:80`},
		{"addr a list", in("endpoints:\n      - addr: [10.0.0.1:80]\n"), `f:4:15: destinations.web:80.endpoints[0].addr: want a single value, not a list`},
		{"alias", in("labels: &l {a: b}\n    endpoints: [{addr: 10.0.0.1:80, labels: *l}]\n"), `f:4:45: destinations.web:80.endpoints[0].labels: want a mapping, not an alias (write out the value of *l)`},
		{"merge", "destinations:\n  a: &a {}\n  b: {<<: *a}\n", `f:3:7: destinations.b.<<: unknown field: there are endpoints, exists, labels`},
		{"tag", in("labels: {a: !!binary aGk=}\n"), `f:3:17: destinations.web:80.labels.a "aGk=": want a single value, not something with the tag !!binary`},
		{"null key", "destinations:\n  ~: {}\n", `f:2:3: destinations: no value: write one, or "" for an empty one`},
		{"null label", in("labels: {a: }\n"), `f:3:17: destinations.web:80.labels.a: no value: write one, or "" for an empty one`},
		{"mapping as key", "destinations:\n  {a: b}: {}\n", `f:2:3: destinations: want a single value, not a mapping`},

		{"unknown field", "destination: {}\n", `f:1:1: destination: unknown field: there are destinations`},
		{"unknown field of a target", in("profile: {}\n"), `f:3:5: destinations.web:80.profile: unknown field: there are endpoints, exists, labels`},
		{"unknown field of an endpoint", one("tls: {wieght: 1}"), `f:3:37: destinations.web:80.endpoints[0].tls: unknown field: there are ` + fields},
		{"destinations twice", "destinations: {}\ndestinations: {}\n", `f:2:1: destinations: given twice, first in line 1: take one out`},
		{"target twice", "destinations:\n  web: {}\n  a: {}\n  \"web\": {}\n", `f:4:3: destinations.web: given twice, first in line 2: take one out`},
		{"label twice", in("labels:\n      a: x\n      a: y\n"), `f:5:7: destinations.web:80.labels.a: given twice, first in line 4: take one out`},
		{"addr twice", in("endpoints:\n      - addr: 10.0.0.1:80\n      - addr: '[::ffff:10.0.0.1]:80'\n"), `f:5:15: destinations.web:80.endpoints[1].addr "[::ffff:10.0.0.1]:80": given twice, first in line 4: take one out`},

		{"empty name", "destinations:\n  \"\": {}\n", `f:2:3: destinations[""]: the name is empty`},
		{"blank in a name", "destinations:\n  web 80: {}\n", `f:2:3: destinations["web 80"] "web 80": white space or a control character in the name`},
		{"exists", in("exists: yes\n"), `f:3:13: destinations.web:80.exists "yes": want true or false`},
		{"exists and does not", in("exists: false\n    labels: {a: b}\n"), `f:3:5: destinations.web:80: the target does not exist, and so can have nothing else: take out exists, or the rest`},

		{"no addr", in("endpoints:\n      - weight: 1\n"), `f:4:9: destinations.web:80.endpoints[0].addr: missing: write addr: 10.0.0.1:80`},
		{"addr", in("endpoints:\n      - weight: 1\n        addr: 10.0.0.300:80\n"), `f:5:15: destinations.web:80.endpoints[0].addr "10.0.0.300:80": ` + noAddr},
		{"addr is a name", in("endpoints: [{addr: localhost:80}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "localhost:80": ` + noAddr},
		{"no port", in("endpoints: [{addr: 10.0.0.1}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "10.0.0.1": no port: write 10.0.0.1:80 or [fd00::1]:80`},
		{"port 0", in("endpoints: [{addr: 10.0.0.1:0}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "10.0.0.1:0": port 0 cannot be connected to: write 1 to 65535`},
		{"port too large", in("endpoints: [{addr: 10.0.0.1:65536}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "10.0.0.1:65536": ` + noAddr},
		{"unspecified", in("endpoints: [{addr: '[::ffff:0.0.0.0]:80'}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "[::ffff:0.0.0.0]:80": the unspecified address is for listening: write the address to connect to`},
		{"unspecified with a zone", in("endpoints: [{addr: '[::%eth0]:80'}]\n"), `f:3:24: destinations.web:80.endpoints[0].addr "[::%eth0]:80": the unspecified address is for listening: write the address to connect to`},
		{"weight", one("weight: 1.5"), `f:3:45: destinations.web:80.endpoints[0].weight "1.5": write a whole number from 1 to 4294967295; 10000 is one unit`},
		{"weight too large", one("weight: 4294967296"), `f:3:45: destinations.web:80.endpoints[0].weight "4294967296": write a whole number from 1 to 4294967295; 10000 is one unit`},
		{"weight 0", one("weight: 0"), `f:3:45: destinations.web:80.endpoints[0].weight "0": leave the weight out for the usual share, or the endpoint out for none`},
		{"priority", one("priority: -1"), `f:3:47: destinations.web:80.endpoints[0].priority "-1": write a whole number from 0, for the first, to 4294967295`},
		{"locality", one("locality: a b"), `f:3:47: destinations.web:80.endpoints[0].locality "a b": white space or a control character in it: take it out`},
		{"locality weight", one("locality: a, locality_weight: x"), `f:3:67: destinations.web:80.endpoints[0].locality_weight "x": write a whole number from 1 to 4294967295; 10000 is one unit`},
		{"locality weight alone", one("locality_weight: 3"), `f:3:54: destinations.web:80.endpoints[0].locality_weight "3": the weight of a locality: write locality too`},
		{
			"locality weights", in("endpoints:\n      - {addr: 10.0.0.1:80, locality: a, locality_weight: 3}\n      - {addr: 10.0.0.2:80, locality: a}\n"),
			`f:5:9: destinations.web:80.endpoints[1]: locality_weight is 0, but 3 at 10.0.0.1:80: write the same for all endpoints of a locality`,
		},
		{"protocol", one("protocol: H2"), `f:3:47: destinations.web:80.endpoints[0].protocol "H2": write h2, opaque or unknown`},
		{"identity", one("identity: a b"), `f:3:47: destinations.web:80.endpoints[0].identity "a b": white space or a control character in it: take it out`},
		{"URI alone", in("endpoints:\n      - addr: 10.0.0.1:80\n        identity: spiffe://td/x\n"), `f:5:19: destinations.web:80.endpoints[0].identity "spiffe://td/x": a URI: write server_name too`},
		{"server name", one(`server_name: "a\x7f"`), `f:3:50: destinations.web:80.endpoints[0].server_name "a\x7f": white space or a control character in it: take it out`},
		{"authority", one("authority: http://a"), `f:3:48: destinations.web:80.endpoints[0].authority "http://a": write host:port alone, without a scheme, user or path`},
		{"authority's port", one("authority: 'a:0'"), `f:3:48: destinations.web:80.endpoints[0].authority "a:0": write host:port, with a port from 1 to 65535`},
		{"authority's host", one("authority: ':80'"), `f:3:48: destinations.web:80.endpoints[0].authority ":80": write host:port, with a port from 1 to 65535`},
		{"authority's colons", one("authority: 'a:b:80'"), `f:3:48: destinations.web:80.endpoints[0].authority "a:b:80": write host:port, with a port from 1 to 65535`},
		{"authority's blank", one("authority: 'a b'"), `f:3:48: destinations.web:80.endpoints[0].authority "a b": white space or a control character in it: take it out`},
		{"ping interval", one("ping_interval: -1s"), `f:3:52: destinations.web:80.endpoints[0].ping_interval "-1s": write a duration such as 300ms or 10s`},
		{"ping while idle", one("ping_while_idle: yes"), `f:3:54: destinations.web:80.endpoints[0].ping_while_idle "yes": want true or false`},
		{"ping timeout", one("ping_timeout: 10"), `f:3:51: destinations.web:80.endpoints[0].ping_timeout "10": write a duration such as 300ms or 10s`},
		{"opaque port", one("opaque_port: 0"), `f:3:50: destinations.web:80.endpoints[0].opaque_port "0": not a port: write 1 to 65535`},
		{"opaque port's name", one("opaque_port: http"), `f:3:50: destinations.web:80.endpoints[0].opaque_port "http": not a port: write 1 to 65535`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse("f", []byte(c.yaml))
			require.EqualError(t, err, c.want)
			assert.Nil(t, got, "a bad file gives no part of it")
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, "f", e.File)
		})
	}
}

func TestParseMistakesOrder(t *testing.T) {
	_, err := Parse("f", []byte(in(`exists: false
    endpoints:
      - addr: nowhere
        weight: heavy
      - protocol: http
  "": {exists: perhaps, ports: {}}
  web:80: {}
`)))
	require.EqualError(t, err, strings.Join([]string{
		`f:3:5: destinations.web:80: the target does not exist, and so can have nothing else: take out exists, or the rest`,
		`f:5:15: destinations.web:80.endpoints[0].addr "nowhere": not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80`,
		`f:6:17: destinations.web:80.endpoints[0].weight "heavy": write a whole number from 1 to 4294967295; 10000 is one unit`,
		`f:7:9: destinations.web:80.endpoints[1].addr: missing: write addr: 10.0.0.1:80`,
		`f:7:19: destinations.web:80.endpoints[1].protocol "http": write h2, opaque or unknown`,
		`f:8:3: destinations[""]: the name is empty`,
		`f:8:16: destinations[""].exists "perhaps": want true or false`,
		`f:8:25: destinations[""].ports: unknown field: there are endpoints, exists, labels`,
		`f:9:3: destinations.web:80: given twice, first in line 2: take one out`,
	}, "\n"))
}

func TestParseAuthority(t *testing.T) {
	for _, want := range []string{"''", "a", "a:80", "10.0.0.1", "10.0.0.1:80", "'[::1]:80'", "'[::1]'", "'::1'"} {
		got, err := Parse("f", []byte(one("authority: "+want)))
		require.NoError(t, err)
		assert.Equal(t, strings.Trim(want, "'"), got["web:80"][0].Authority)
	}
}

// Twenty passes over a large file would take minutes; one finds a line too.
func TestParseLargeInvalidFile(t *testing.T) {
	data := slices.Concat([]byte("destinations:\n"), []byte(strings.Repeat("#\n", 1<<20/2)), []byte("  a: {}\n b: {}\n"))
	_, err := Parse("f", data)
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Reason, "did not find expected")
	assert.GreaterOrEqual(t, e.Line, 1)
}
