package file

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file is either rejected with valid line numbers, or has profiles of which a Router
// leaves nothing out.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "---\n{}\n---\n", "target: &a web\nname: *a\n", "target:\n  a:\n  b\n c: d",
		"target: [a, '[::1]:80']\nrate: {perSecond: 1e999}\n",
		inMatch("header: {a: {regex: '('}, b: [c, {present: true}]}, query: {'': {prefix: ''}}, not: {not: {any: []}}"),
		inMatch("grpc: {service: a, method: b}, host: {prefix: x}, pathPrefix: [/, /a?], pathRegex: '\\Q(', path: \"/\\x7f\\xff\""),
		inRoute("{match: {all: []}, failures: [500-599], rate: {burst: 1}, hedge: 1ns, maxRetries: 99, timeout: 9223372036s}"),
		inRoute("{match: {all: []}, classes: [{match: {any: [{status: [1, 200]}]}, failure: true}]}"),
		inRoute("{match: {all: []}, requestHeader: {add: {a: [b]}, set: {'': c}, remove: d}, responseHeader: {remove: [host, te]}}"),
		inRoute("{match: {all: []}, redirect: {status: 308, scheme: https, host: '::1', port: 1, oldPrefix: /%, newPrefix: //a}}"),
		inRoute("{match: {all: []}, faults: [{share: 60%, status: 503, grpc: UNKNOWN, ttl: 1ns}, {share: .5, delay: 1h, jitter: 1ns, ttl: 1h}]}"),
		inRoute("{match: {all: []}, mirrors: [{target: a, body: 1MiB, share: 1e-9}, {target: 'a:1', body: 0, inFlight: 1}]}"),
		inRoute("{match: {all: []}, classes: [{match: {grpc: [0-16, ok], trailer: {a: {regex: '('}}}, failure: true}]}"),
		"target: 10.0.0.1\nendpoint: {addr: '[::1%a]:1', protocol: opaque, serverName: a, identity: b, authority: 'a:b', weight: 1}\n",
		`{"target":"web","routes":[{"name":"\ud83d\ude00\/` + "\x7f" + `\\","match":{"path":"/a"}}]}`,
		documented, openAPI(1),
		"target: web\nroutes:\n" + strings.Repeat("- {match: {pathRegex: '(a?b?){1000}'}}\n", 4),
		sp("  routes:\n" + strings.Repeat("  - {name: a, condition: {pathRegex: '(a?b?){1000}'}}\n", 4)),
		sp("  retryBudget: {retryRatio: 1e9, minRetriesPerSecond: 4294967295, ttl: -1s}\n  opaquePorts: [1, '2']\n"),
		sp("  dstOverrides: [{authority: 'a b', weight: 1e3}, {authority: a, weight: 1Ki}, {authority: 'a:1:2', weight: 0n}]\n"),
		sp("  routes: [{name: a, timeout: -1h, condition: {any: [{all: []}, {not: {pathRegex: '('}}]}}]\n"),
		sp("  routes: [{name: a, condition: {method: g}, responseClasses: [{condition: {all: [{any: []}, {status: {min: 100}}]}}]}]\n"),
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{}]}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f", data)
		if err != nil {
			require.Nil(t, s)
			var mistakes []*Error
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				mistakes = append(mistakes, e.(*Error))
			}
			requirePlaces(t, mistakes, data)
			return
		}
		requirePlaces(t, s.Warnings, data)
		for _, target := range s.Targets() {
			p := s.Profile(target)
			require.NotNil(t, p, target)
			require.NoError(t, p.Validate(), target)
		}
	})
}

func requirePlaces(t *testing.T, notes []*Error, data []byte) {
	t.Helper()
	last := 1
	for _, e := range notes {
		require.NotEmpty(t, e.Reason)
		require.GreaterOrEqual(t, e.Line, last, "in the order of the lines")
		require.GreaterOrEqual(t, e.Column, 0)
		last = e.Line
	}
	require.LessOrEqual(t, last, 1+bytes.Count(data, []byte("\n")))
}

// A spec with valid types is accepted, as by linkerd. Parts that are left out have
// warnings.
func FuzzServiceProfile(f *testing.F) {
	f.Add("a", "GET", "/a", "1s", uint32(500), uint32(599), true)
	f.Add("a", "G T", "(", "-1s", uint32(0), uint32(404), false)
	f.Add("\x00\u2028", "get", `\Qa`, "", uint32(0), uint32(0), false)
	f.Fuzz(func(t *testing.T, name, method, path, timeout string, low, high uint32, failure bool) {
		status := object{"status": object{"min": low, "max": high}}
		spec := object{"routes": []object{{
			"name": name, "isRetryable": failure, "timeout": timeout,
			"condition":       object{"all": []object{{"not": object{"method": method}}, {"pathRegex": path}}, "any": []object{}},
			"responseClasses": []object{{"isFailure": failure, "condition": object{"any": []object{status, {"not": status}}}}},
		}}}
		data, err := json.Marshal(object{
			"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile", "metadata": object{"name": "web"}, "spec": spec,
		})
		require.NoError(t, err)
		s, err := Parse("f", data)
		if err != nil {
			return
		}
		p := s.Profile("web:80")
		require.NoError(t, p.Validate())
		whole := len(p.Routes) == 1 && len(p.Routes[0].Classes) == 1 && (low > 0 && high > 0)
		require.True(t, whole || len(s.Warnings) > 0, "parts that are left out have warnings")
	})
}
