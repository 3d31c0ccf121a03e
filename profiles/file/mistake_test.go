package file

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// short puts fields into a document of the short form; they begin in column 14.
func inShort(fields string) string { return "{target: web, " + fields + "}\n" }

// inRoute puts fields into a route; they begin in line 3, column 3.
func inRoute(fields string) string { return "target: web\nroutes:\n- " + fields + "\n" }

func inMatch(fields string) string { return "target: web\nroutes:\n- match: {" + fields + "}\n" }

func TestMistakesInYAML(t *testing.T) {
	const nothing = `f:1: there is nothing in the file; for no profile, write {}`
	for _, c := range []struct{ name, yaml, want string }{
		{"nothing", "", nothing},
		{"comments", "# soon\n---\n# later\n", nothing},
		{"null", "---\n~\n", nothing},
		{"indentation", "target: web\nroutes:\n  - name: a\n - name: b\n", `f:4: not YAML: did not find expected key`},
		{"tab", "target: web\nroutes:\n\t- name: a\n", `f:3: not YAML: found character that cannot start any token`},
		{"a second document", "target: web\n---\n\n}\n", `f:4: not YAML: did not find expected node content`},
		{"not UTF-8", "target: web\xff\n", `f:1: not YAML: invalid leading UTF-8 octet`},
		{"a list", "- target: web\n", `f:1:1: want a mapping, not a list`},
		{"a text", "web\n", `f:1:1: want a mapping, not a single value`},
		{"alias", "target: &a web\nname: *a\n", `f:2:7: name: want a single value, not an alias (write out the value of *a)`},
		{"tag", "target: !!binary aGk=\n", `f:1:9: target "aGk=": want a single value, not something with the tag !!binary`},
		{"merge", "target: web\n<<: {opaque: true}\n", `f:2:1: <<: unknown field: there are distribution, endpoint, name, opaque, precedence, retryBudget, routes, routesOnly, split, target`},
		{"too many documents", strings.Repeat("---\n{}\n", maxDocuments+1), `f:20002: more than 10000 documents: split the file`},
		{"mapping as a key", "target: web\n{a: b}: c\n", `f:2:1: want a single value, not a mapping`},
		{"null as a key", "target: web\n~: c\n", `f:2:1: no value: write one, or "" for an empty one`},
	} {
		t.Run(c.name, func(t *testing.T) { requireMistakes(t, c.yaml, c.want) })
	}
}

func TestMistakesInShortForm(t *testing.T) {
	const range3 = "want a status such as 404, or a range such as 500-599, from 100 to 999"
	const aTarget = "want a DNS name or an IP address, with a port or without: web.default.svc.cluster.local:80"
	const aText = "want a text, or one of exact, prefix, suffix, contains, regex, range and present"
	for _, c := range []struct{ name, yaml, want string }{
		{"no target", "routes: []\n", `f:1:1: target: missing: write the name of the service: web.default.svc.cluster.local`},
		{"null target", "target:\n", `f:1:8: target: missing: write the name of the service: web.default.svc.cluster.local`},
		{"no targets", "target: []\n", `f:1:9: target: an empty list: want a name such as web.default.svc.cluster.local`},
		{"target", "target: [web, a b]\n", `f:1:15: target[1] "a b": ` + aTarget},
		{"target's port", "target: web:http\n", `f:1:9: target "web:http": ` + aTarget},
		{"target's mapping", "target: {web: 80}\n", `f:1:9: target: want a list, not a mapping`},
		{"unknown field", inShort("timeout: 1s"), `f:1:15: timeout: unknown field: there are distribution, endpoint, name, opaque, precedence, retryBudget, routes, routesOnly, split, target`},
		{"given twice", inShort("opaque: true, opaque: true"), `f:1:29: opaque: given twice, first in line 1: take one out`},
		{"name", inShort("name: web:80"), `f:1:21: name "web:80": want a DNS name without a port`},
		{"opaque", inShort("opaque: yes"), `f:1:23: opaque "yes": want true or false`},
		{"endpoint", inShort("endpoint: {addr: web:80}"), `f:1:32: endpoint.addr "web:80": want an IP address and a port: 10.0.0.1:80`},
		{"no endpoint", inShort("endpoint: {labels: {a: b}}"), `f:1:25: endpoint.addr: missing: write where it is: 10.0.0.1:80`},
		{"endpoint and split", inShort("endpoint: {addr: '10.0.0.1:1'}, split: {web: 1}, name: web"),
			"f:1:54: split: everything goes to the endpoint: take one of the two out\n" +
				`f:1:70: name "web": everything goes to the endpoint: take one of the two out`},
		{"endpoint's protocol", inShort("endpoint: {addr: '10.0.0.1:1', protocol: h3}"), `f:1:56: endpoint.protocol "h3": want one of unknown, h2, opaque`},
		{"endpoint's identity", inShort("endpoint: {addr: '10.0.0.1:1', identity: web}"),
			`f:1:25: endpoint: endpoint 10.0.0.1:1: a TLS server name needs an identity, and the reverse`},
		{"endpoint's opaque port", inShort("endpoint: {addr: '10.0.0.1:1', opaquePort: 0}"),
			`f:1:58: endpoint.opaquePort "0": want a port from 1 to 65535`},
		{"label", inShort("endpoint: {addr: '10.0.0.1:1', labels: {a.b: [c]}}"), `f:1:60: endpoint.labels["a.b"]: want a single value, not a list`},
		{"no label", inShort("endpoint: {addr: '10.0.0.1:1', labels: {'': c}}"), `f:1:55: endpoint.labels[""]: a label without a name`},
		{"split", inShort("split: {'': 1}"), `f:1:23: split[""]: no authority: want a name, with a port or without`},
		{"weight", inShort("split: {web-v1: 50%}"), `f:1:31: split.web-v1 "50%": want a whole number from 0 to 4294967295`},
		{"budget", inShort("retryBudget: {ratio: -1, ttl: 1}"), "f:1:36: retryBudget.ratio \"-1\": want a number from 0\nf:1:45: retryBudget.ttl \"1\": want a duration such as 300ms, 10s or 1m30s"},
		{"budget's ttl", inShort("retryBudget: {ttl: 2m}"), `f:1:28: retryBudget: ttl 2m0s is not from 1s to 60s`},
		{"ratio", inShort("retryBudget: {ratio: NaN}"), `f:1:36: retryBudget.ratio "NaN": want a number from 0`},
		{"two profiles", "target: web\n---\ntarget: [api, WEB.]\n", `f:3:15: target[1] "WEB.": another profile for web, the first one is in line 1: take one out`},

		{"empty route", inRoute(""), `f:3:2: routes[0]: an empty route: take it out, or write {match: {path: /}}`},
		{"routes a mapping", inShort("routes: {name: a}"), `f:1:23: routes: want a list, not a mapping`},
		{"no match", inRoute("name: a"), `f:3:3: routes[0].match: missing: write which requests: {method: GET, path: /books}; all of them are {pathPrefix: /}`},
		{"labels", inRoute("{match: {method: GET}, labels: [a]}"), `f:3:34: routes[0].labels: want a mapping, not a list`},
		{"header of the host", inMatch("header: {Host: www.example.com}"),
			`f:3:26: routes[0].match.header.Host "www.example.com": the host of a request is not among its header fields: write host in place of header`},
		{"nested", inMatch(strings.Repeat("not: {", 300) + strings.Repeat("}", 300)), "f:3:1492: routes[0].match" + strings.Repeat(".not", 247) + ": nested too deeply"},
		{"statuses", inRoute("{match: {method: GET}, failures: [{min: 500}]}"), `f:3:37: routes[0].failures[0]: want a single value, not a mapping`},
		{"timeout", inRoute("{match: {method: GET}, timeout: -1s}"), `f:3:35: routes[0].timeout "-1s": want a duration such as 300ms, 10s or 1m30s`},
		{"retries", inRoute("{match: {method: GET}, maxRetries: 100}"), `f:3:38: routes[0].maxRetries "100": want a whole number from 0 to 99`},
		{"retry", inRoute("{match: {method: GET}, retry: POST}"), `f:3:33: routes[0].retry "POST": want true, false or {nonIdempotent: true}`},
		{"retry list", inRoute("{match: {method: GET}, retry: [POST]}"), `f:3:33: routes[0].retry: want a single value, not a list`},
		{"retry without a field", inRoute("{match: {method: GET}, retry: {}}"),
			`f:3:33: routes[0].retry.nonIdempotent: missing: write true to retry requests of any method, or retry: true for idempotent ones`},
		{"retry field", inRoute("{match: {method: GET}, retry: {methods: [POST]}}"),
			"f:3:33: routes[0].retry.nonIdempotent: missing: write true to retry requests of any method, or retry: true for idempotent ones\n" +
				`f:3:34: routes[0].retry.methods: unknown field: there are nonIdempotent`},
		{"retry value", inRoute("{match: {method: GET}, retry: {nonIdempotent: 1}}"), `f:3:49: routes[0].retry.nonIdempotent "1": want true or false`},
		{"rate", inRoute("{match: {method: GET}, rate: {burst: 1}}"), `f:3:32: routes[0].rate.perSecond: missing: write a number of requests`},
		{"rate 0", inRoute("{match: {method: GET}, rate: {perSecond: 0, burst: 1}}"), `f:3:32: routes[0].rate: a burst without a number per second`},
		{"status", inRoute("{match: {method: GET}, failures: [99, 500-499, 5xx, 500-1000]}"),
			`f:3:37: routes[0].failures[0] "99": ` + range3 + "\n" + `f:3:41: routes[0].failures[1] "500-499": ` + range3 + "\n" +
				`f:3:50: routes[0].failures[2] "5xx": ` + range3 + "\n" + `f:3:55: routes[0].failures[3] "500-1000": ` + range3},
		{"two ways", inRoute("{match: {method: GET}, failures: 500, classes: []}"), `f:3:50: routes[0].classes: the order of these and of successes and failures is not known: write them all here`},
		{"class", inRoute("{match: {method: GET}, classes: [{match: {status: 404}}]}"), `f:3:36: routes[0].classes[0].failure: missing: write true or false`},
		{"empty class", inRoute("{match: {method: GET}, classes: [~, {match: {any: []}, failure: true}]}"),
			"f:3:36: routes[0].classes[0]: an empty class: take it out\nf:3:53: routes[0].classes[1].match.any: no members"},

		{"empty match", inMatch(""), `f:3:10: routes[0].match: no condition: want one or more of all, any, grpc, header, host, method, not, path, pathPrefix, pathRegex, query`},
		{"empty member", inMatch("all: [~]"), `f:3:17: routes[0].match.all[0]: an empty condition: take it out`},
		{"empty list", inMatch("method: []"), `f:3:19: routes[0].match.method: an empty list holds for no request: take it out`},
		{"methods", inMatch("method: [[GET]]"), `f:3:20: routes[0].match.method[0]: want a single value, not a list`},
		{"hosts", inMatch("host: [[a]]"), `f:3:18: routes[0].match.host[0]: want a single value, not a list`},
		{"method", inMatch("method: G T"), `f:3:19: routes[0].match.method "G T": method "G T" is not a token`},
		{"path", inMatch("path: books"), `f:3:17: routes[0].match.path "books": want a path that begins with '/', without a query; pathRegex takes regular expressions`},
		{"path's query", inMatch("path: '/a?b=c'"), `f:3:17: routes[0].match.path "/a?b=c": want a path that begins with '/', without a query; pathRegex takes regular expressions`},
		{"no regex", inMatch("pathRegex: ''"), `f:3:22: routes[0].match.pathRegex: want a regular expression for the whole path`},
		{"regex", inMatch("pathRegex: '/a)|(b'"), "f:3:22: routes[0].match.pathRegex \"/a)|(b\": want a regular expression: unexpected ): `/a)|(b`"},
		{"prefix", inMatch("not: {pathPrefix: a}"), `f:3:29: routes[0].match.not.pathPrefix "a": `},
		{"header", inMatch("header: {'a b': c}"), `f:3:27: routes[0].match.header["a b"] "c": `},
		{"header's regex", inMatch("header: {a: {regex: '*'}}"), "f:3:31: routes[0].match.header.a.regex \"*\": want a regular expression: missing argument to repetition operator: `*`"},
		{"two texts", inMatch("header: {a: {exact: b, prefix: c}}"), `f:3:23: routes[0].match.header.a: ` + aText},
		{"range", inMatch("header: {a: {range: 9-1}}"), `f:3:31: routes[0].match.header.a.range "9-1": want whole numbers such as 10-20`},
		{"only ignoreCase", inMatch("header: {a: {ignoreCase: true}}"), `f:3:23: routes[0].match.header.a: ` + aText},
		{"no text", inMatch("query: {a: {}}"), `f:3:22: routes[0].match.query.a: ` + aText},
		{"absent", inMatch("header: {a: {present: false}}"), `f:3:33: routes[0].match.header.a.present "false": want true; for an absent field, put the condition below not`},
		{"host", inMatch("host: {prefix: ''}"), `f:3:17: routes[0].match.host: `},
		{"grpc", inMatch("grpc: {service: ''}"), `f:3:27: routes[0].match.grpc.service: want a text that is not empty`},
		{"grpc service", inMatch("grpc: {service: a/b}"), `f:3:17: routes[0].match.grpc: `},
	} {
		t.Run(c.name, func(t *testing.T) { requireMistakes(t, c.yaml, c.want) })
	}
}

func TestMistakesInServiceProfile(t *testing.T) {
	const aName = "want a name in small letters, digits, '-' and '.': web.default.svc.cluster.local"
	const aKind = ": want kind ServiceProfile of linkerd.io/v1alpha2, or neither of the two for the short form"
	const head = "apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\n"
	route := func(fields string) string { return sp("  routes:\n  - {name: a, " + fields + "}\n") }
	get := func(fields string) string { return route("condition: {method: GET}, " + fields) }
	status := func(fields string) string {
		return get("responseClasses: [{condition: {status: {" + fields + "}}}]")
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"kind", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", `f:2:7: kind "Service": kind "Service" of apiVersion "v1"` + aKind},
		{"no kind", "apiVersion: linkerd.io/v1alpha2\nspec: {}\n", `f:1:1: kind "" of apiVersion "linkerd.io/v1alpha2"` + aKind},
		{"version", "apiVersion: linkerd.io/v1\nkind: ServiceProfile\nmetadata: {name: web}\nspec: {}\n", `f:1:13: apiVersion "linkerd.io/v1": want linkerd.io/v1alpha2`},
		{"list", "apiVersion: v1\nkind: List\nitems: [web]\n", `f:3:9: items[0] "web": want a mapping, not a single value`},
		{"lists in lists", strings.Repeat("{apiVersion: v1, kind: List, items: [", 200) + strings.Repeat("]}", 200),
			"f:1:4145: items[0]" + strings.Repeat(".items[0]", 111) + ": nested too deeply"},
		{"in a list", "apiVersion: v1\nkind: List\nitems: [{target: web}]\n", `f:3:9: items[0]: kind "" of apiVersion ""` + aKind},
		{"nothing else", head, "f:1:1: metadata: missing: write {name: web.default.svc.cluster.local}\nf:1:1: spec: missing: write {routes: []}"},
		{"no name", head + "metadata: {namespace: ns}\nspec: {}\n", `f:3:11: metadata.name: missing: write the name of the service: web.default.svc.cluster.local`},
		{"name", head + "metadata: {name: ^.^}\nspec: {}\n", `f:3:18: metadata.name "^.^": ` + aName},
		{"large letters", head + "metadata: {name: Web}\nspec: {}\n", `f:3:18: metadata.name "Web": ` + aName},
		{"address", head + "metadata: {name: 10.0.0.1}\nspec: {}\n", `f:3:18: metadata.name "10.0.0.1": ` + aName},
		{"unknown field", sp("  foo: bar\n"), `f:6:3: spec.foo: unknown field: there are dstOverrides, opaquePorts, retryBudget, routes`},
		{"null route", sp("  routes: [~]\n"), `f:6:12: spec.routes[0]: an empty route: take it out, or write {name: get, condition: {method: GET}}`},
		{"no route name", sp("  routes: [{condition: {method: GET}}]\n"), `f:6:12: spec.routes[0].name: missing: write the name of the route in metrics`},
		{"empty route name", sp("  routes: [{name: '', condition: {method: GET}}]\n"), `f:6:19: spec.routes[0].name: want a text that is not empty`},
		{"no condition", route("condition: "), `f:7:26: spec.routes[0].condition: missing: write which requests: {method: GET, pathRegex: /books}`},
		{"empty condition", route("condition: {method: }"), `f:7:26: spec.routes[0].condition: no condition: want one or more of all, any, method, not, pathRegex`},
		{"unknown condition", route("condition: {foo: bar, method: GET}"), `f:7:27: spec.routes[0].condition.foo: unknown field: there are all, any, method, not, pathRegex`},
		{"null member", route("condition: {any: [~]}"), `f:7:33: spec.routes[0].condition.any[0]: an empty condition: take it out`},
		{"timeout", get("timeout: 300"), `f:7:50: spec.routes[0].timeout "300": want a duration such as 300ms, 10s or 1m30s`},
		{"retryable", get("isRetryable: 1"), `f:7:54: spec.routes[0].isRetryable "1": want true or false`},
		{"null class", get("responseClasses: [~]"), `f:7:59: spec.routes[0].responseClasses[0]: an empty response class: take it out`},
		{"class", get("responseClasses: [{isFailure: true}]"), `f:7:59: spec.routes[0].responseClasses[0].condition: missing: write which responses: {status: {min: 500, max: 599}}`},
		{"empty class", get("responseClasses: [{condition: {status: }}]"), `f:7:71: spec.routes[0].responseClasses[0].condition: no condition: want one or more of all, any, not, status`},
		{"status above", status("min: 500, max: 600"), `f:7:80: spec.routes[0].responseClasses[0].condition.status: 500 to 600: want statuses from 100 to 599`},
		{"status below", status("min: 1"), `f:7:80: spec.routes[0].responseClasses[0].condition.status: 1 to 0: want statuses from 100 to 599`},
		{"status order", status("min: 300, max: 200"), `f:7:80: spec.routes[0].responseClasses[0].condition.status: max 200 is below min 300`},
		{"status type", status("min: false"), `f:7:86: spec.routes[0].responseClasses[0].condition.status.min "false": want a whole number from 0 to 4294967295`},
		{"budget", sp("  retryBudget: {retryRatio: -1, minRetriesPerSecond: 1}\n"),
			"f:6:16: spec.retryBudget.ttl: missing: write all three: {retryRatio: 0.2, minRetriesPerSecond: 10, ttl: 10s}\n" +
				`f:6:29: spec.retryBudget.retryRatio "-1": want a number from 0`},
		{"budget's ttl", sp("  retryBudget: {retryRatio: 1, minRetriesPerSecond: 1, ttl: ten}\n"), `f:6:61: spec.retryBudget.ttl "ten": want a duration such as 300ms, 10s or 1m30s`},
		{"no weight", sp("  dstOverrides: [{authority: web}]\n"), `f:6:18: spec.dstOverrides[0].weight: missing: write the share, such as 500m`},
		{"no authority", sp("  dstOverrides: [{weight: 1}]\n"), `f:6:18: spec.dstOverrides[0].authority: missing: write web-v2.default.svc.cluster.local:80`},
		{"weight", sp("  dstOverrides: [{authority: web, weight: -1}]\n"), `f:6:43: spec.dstOverrides[0].weight "-1": want a quantity such as 1, 0.5 or 500m, from 0 to 429496`},
		{"opaque port", sp("  opaquePorts: {http: {}}\n"), `f:6:17: spec.opaquePorts.http "http": want a port from 1 to 65535`},
		{"opaque ports", sp("  opaquePorts: ['80', 0]\n"), `f:6:23: spec.opaquePorts[1] "0": want a port from 1 to 65535`},
		{"twice", sp("  routes: []\n") + "---\n" + sp("  routes: []\n"), `f:11:9: metadata.name "web.ns.svc.cluster.local": another profile for web.ns.svc.cluster.local, the first one is in line 4: take one out`},
		{"twice by namespace", sp("  routes: []\n") + "---\n" + strings.Replace(sp("  routes: []\n"), "metadata:", "metadata:\n  namespace: ns", 1),
			`f:12:9: metadata.name "web.ns.svc.cluster.local": another profile for web.ns.svc.cluster.local, the first one is in line 4: take one out`},
	} {
		t.Run(c.name, func(t *testing.T) { requireMistakes(t, c.yaml, c.want) })
	}
}

// A want that ends in a space is a prefix. The rest of the message is from package
// profiles.
func requireMistakes(t *testing.T, yaml, want string) {
	t.Helper()
	got, err := Parse("f", []byte(yaml))
	require.Error(t, err)
	if strings.HasSuffix(want, " ") {
		require.Greater(t, len(err.Error()), len(want))
		require.Equal(t, want, err.Error()[:len(want)])
	} else {
		require.EqualError(t, err, want)
	}
	assert.Nil(t, got, "a bad file gives no part of it")
	lines := strings.Split(yaml, "\n")
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		e := err.(*Error)
		assert.Equal(t, "f", e.File)
		if e.Column > 0 && e.Value != "" {
			there := strings.TrimLeft(lines[e.Line-1][e.Column-1:], `'"`)
			assert.True(t, strings.HasPrefix(strings.TrimPrefix(there, "!!binary "), e.Value), "%v is not at %q", e, there)
		}
	}
}

func TestParseMistakesOrder(t *testing.T) {
	requireMistakes(t, `target: a b
routes:
- {match: {method: G T, path: x}, timeout: soon}
- foo: bar
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web}
spec:
  routes: [{name: a, timeout: x}]
`, strings.Join([]string{
		`f:1:9: target "a b": want a DNS name or an IP address, with a port or without: web.default.svc.cluster.local:80`,
		`f:3:20: routes[0].match.method "G T": method "G T" is not a token`,
		`f:3:31: routes[0].match.path "x": want a path that begins with '/', without a query; pathRegex takes regular expressions`,
		`f:3:44: routes[0].timeout "soon": want a duration such as 300ms, 10s or 1m30s`,
		`f:4:3: routes[1].foo: unknown field: there are classes, failures, faults, hedge, labels, limit, match, maxRetries, mirrors, name, rate, redirect, requestHeader, respond, responseHeader, retry, rewrite, successes, timeout, timeoutAfterBody, tryTimeout`,
		`f:4:3: routes[1].match: missing: write which requests: {method: GET, path: /books}; all of them are {pathPrefix: /}`,
		`f:10:12: spec.routes[0].condition: missing: write which requests: {method: GET, pathRegex: /books}`,
		`f:10:31: spec.routes[0].timeout "x": want a duration such as 300ms, 10s or 1m30s`,
	}, "\n"))
}

func TestLongValue(t *testing.T) {
	_, err := Parse("f", []byte("target: "+strings.Repeat("ä ", 100)))
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.LessOrEqual(t, len(e.Value), 84)
	assert.True(t, strings.HasSuffix(e.Value, "…"))
}
