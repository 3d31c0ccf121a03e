package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// write writes files, by their paths in a new folder, and returns the path of "gateway.yaml".
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return filepath.Join(dir, "gateway.yaml")
}

// errorOf returns the mistakes in the file, without its folder.
func errorOf(t *testing.T, file string) string {
	t.Helper()
	_, err := Load(file)
	require.Error(t, err)
	return strings.ReplaceAll(err.Error(), filepath.Dir(file)+"/", "")
}

// Included files add to the lists, in the order of their names, and may include others.
func TestInclude(t *testing.T) {
	const one = "routes: [{name: %, backendRefs: [{name: b}]}]\n"
	files := map[string]string{
		"gateway.yaml": "include: [services.yaml, routes/*.yaml]\nlisteners: [{name: http, address: ':80'}]\n" +
			strings.ReplaceAll(one, "%", "a"),
		"services.yaml":   "include: [more.yaml, gateway.yaml]\nservices: [{name: b, static: {addresses: ['10.0.0.1:80']}}]\n",
		"more.yaml":       "drainTimeout: 5s\n",
		"routes/2.yaml":   strings.ReplaceAll(one, "%", "c"),
		"routes/1.yaml":   strings.ReplaceAll(one, "%", "b"),
		"routes/none.yml": "nothing: 1",
	}
	file := write(t, files)
	c, err := Load(file)
	require.NoError(t, err)
	require.Len(t, c.Routes, 3)
	assert.Equal(t, []Name{"a", "b", "c"}, []Name{c.Routes[0].Name, c.Routes[1].Name, c.Routes[2].Name})
	assert.Equal(t, "5s", c.DrainTimeout.D().String())

	// A file that appears in a folder changes a content.
	changed := func() (paths []string) {
		for _, content := range c.Contents() {
			if now, _ := content.Read(); string(now) != string(content.Data) {
				paths = append(paths, filepath.Base(content.Path))
			}
		}
		return paths
	}
	assert.Len(t, c.Contents(), 6)
	assert.Empty(t, changed())
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "routes", "3.yaml"), nil, 0o600))
	assert.Equal(t, []string{"*.yaml"}, changed())

	for name, change := range map[string]struct{ text, want string }{
		"services.yaml": {"services: {}\n", "services.yaml:1:11: services: want a list, not a mapping"},
		"routes/1.yaml": {"admin: {tap: 'off'}\nroutes: [{name: a, backendRefs: [{name: b}]}]\n",
			`routes/1.yaml:2:17: routes[1].name "a": given twice: want another name`},
		"routes/2.yaml": {"a:\n\t- b\n", "routes/2.yaml:2: not YAML: found character that cannot start any token"},
		"more.yaml": {"drainTimeout: 5s\nlisteners: [{name: http, address: ':81', idleTimeout: 1x}]\n",
			`more.yaml:2:55: listeners[1].idleTimeout "1x": want a duration such as 300ms, 10s or 1m30s`},
	} {
		copied := maps.Clone(files)
		copied[name] = change.text
		assert.Equal(t, change.want, errorOf(t, write(t, copied)), name)
	}
	files["more.yaml"] = "retryBudget: {}\nretryBudget: {}\ninclude: [twice.yaml, absent.yaml, '[a-']\n"
	files["twice.yaml"] = "listeners: []\nretryBudget: {}\n"
	got := errorOf(t, write(t, files))
	assert.Contains(t, got, "more.yaml:2:1: retryBudget: given twice, first in line 1: take one out\n")
	assert.Contains(t, got, "twice.yaml:2:1: retryBudget: given twice, first in ")
	assert.Contains(t, got, `more.yaml:3:23: include[5] "absent.yaml": want a file that can be read: open absent.yaml: no such file`)
	assert.Contains(t, got, `include[6] "[a-": want the path of a file, or a pattern such as routes/*.yaml: syntax error in pattern`)
}

// Each value may have variables, except in a configuration that a program has generated.
func TestVariables(t *testing.T) {
	t.Setenv("TEST_PORT", "8080")
	t.Setenv("TEST_EMPTY", "")
	const text = `listeners: [{name: "${TEST_NAME:-http}", address: ":${TEST_PORT}", maxConnections: "${TEST_PORT}"}]
admin: {pprof: "${TEST_PPROF:-true}", tap: "${TEST_EMPTY:-off}"}
routes: [{name: a, directResponse: {status: 200, body: "$${TEST_PORT} ${TEST_EMPTY} $ {a}"}}]
`
	c, err := Parse("gateway.yaml", []byte(text))
	require.NoError(t, err)
	assert.Equal(t, []any{Name("http"), Address(":8080"), 8080}, []any{c.Listeners[0].Name, c.Listeners[0].Address, c.Listeners[0].MaxConnections})
	assert.Equal(t, []any{true, "off", Text("${TEST_PORT}  $ {a}")}, []any{c.Admin.PProf, c.Admin.Tap, c.Routes[0].DirectResponse.Body})
	for from, want := range map[string]string{
		":${TEST_PORT}": `gateway.yaml:1:51: listeners[0].address ":${TEST_NONE}": want the environment variable TEST_NONE, which is not set, ` +
			`or a default: ${TEST_NONE:-text}`,
	} {
		_, err := Parse("gateway.yaml", []byte(replaceOnce(t, text, from, ":${TEST_NONE}")))
		require.EqualError(t, err, want)
	}
	_, err = Parse("gateway.yaml", []byte(replaceOnce(t, text, "${TEST_EMPTY} ", "${a-b}")))
	require.ErrorContains(t, err, "want a variable such as ${NAME} or ${NAME:-default}, or $${ for the text ${")
	c, err = Generated(map[string]any{"kubernetes": map[string]any{}, "routes": []any{
		map[string]any{"name": "a", "directResponse": map[string]any{"status": 200, "body": "${TEST_PORT}"}},
	}}, nil)
	require.NoError(t, err)
	assert.Equal(t, Text("${TEST_PORT}"), c.Routes[0].DirectResponse.Body)
}

// Items have the fields of defaults that they do not have themselves.
func TestDefaults(t *testing.T) {
	const text = `defaults:
  listeners: {idleTimeout: 5s}
  services: {connectTimeout: 1s, loadBalancer: {policy: Random}}
  routes:
    timeouts: {request: 7s}
listeners: [{name: a, address: ":80"}, {name: b, address: ":81", idleTimeout: 6s}]
services: [{name: a, static: {addresses: ["10.0.0.1:80"]}, loadBalancer: {slowStart: 1s}}]
routes:
- {name: a, backendRefs: [{name: a}]}
- {name: b, backendRefs: [{name: a}], timeouts: {backendRequest: 1s}}
`
	c, err := Parse("gateway.yaml", []byte(text))
	require.NoError(t, err)
	assert.Equal(t, "5s 6s", c.Listeners[0].IdleTimeout.D().String()+" "+c.Listeners[1].IdleTimeout.D().String())
	assert.Equal(t, "1s EWMA", c.Services[0].ConnectTimeout.D().String()+" "+c.Services[0].LoadBalancer.Policy)
	assert.Equal(t, "7s 1m0s", c.Routes[0].Timeouts.Request.D().String()+" "+c.Routes[1].Timeouts.Request.D().String())

	_, err = Parse("gateway.yaml", []byte(replaceOnce(t, replaceOnce(t, text, "idleTimeout: 5s", "idleTimeout: 5, idle: 1"), "request: 7s", "request: 7x")))
	require.ErrorContains(t, err, `gateway.yaml:2:28: defaults.listeners.idleTimeout "5": want a duration such as 300ms, 10s or 1m30s
gateway.yaml:2:31: defaults.listeners.idle: unknown field: there are address, `)
	require.ErrorContains(t, err, `
gateway.yaml:5:25: defaults.routes.timeouts.request "7x": want a duration such as 300ms, 10s or 1m30s`)
	_, err = Parse("gateway.yaml", []byte(replaceOnce(t, text, "  listeners: {idleTimeout: 5s}", "  listeners: [a]")))
	require.EqualError(t, err, "gateway.yaml:2:14: defaults.listeners: want a mapping, not a list")
}

// The effective configuration is the same configuration.
func TestEncode(t *testing.T) {
	c, err := load(t, "complete.yaml")
	require.NoError(t, err)
	text, err := c.Encode()
	require.NoError(t, err)
	again, err := Parse("gateway.yaml", text)
	require.NoError(t, err, "%s", text)
	same, err := again.Encode()
	require.NoError(t, err)
	assert.Equal(t, string(text), string(same))
	for i := range c.Services {
		assert.Equal(t, c.Services[i].Settings(), again.Services[i].Settings())
	}
	assert.Equal(t, c.Routes, again.Routes)
	assert.NotContains(t, string(text), "defaults")
	assert.Contains(t, string(text), "  idleTimeout: 2m0s\n")

	t.Setenv("TEST_BODY", "$${A}")
	c, err = Parse("gateway.yaml", []byte(replaceOnce(t, base, "  backendRefs:\n  - name: books\n", "  directResponse: {status: 200, body: '${TEST_BODY}'}\n")))
	require.NoError(t, err)
	text, err = c.Encode()
	require.NoError(t, err)
	again, err = Parse("gateway.yaml", text)
	require.NoError(t, err)
	assert.Equal(t, Text("$${A}"), again.Routes[0].DirectResponse.Body)
}

// A warning has the place of a route that no request reaches. Others have none.
func TestUnreachableRoutes(t *testing.T) {
	file := write(t, map[string]string{
		"gateway.yaml": `include: [more.yaml]
listeners: [{name: http, address: ":80"}, {name: https, address: ":81"}]
routes:
- {name: shop, hostnames: ["*.shop.example"], matches: [{path: {prefix: /a}}], directResponse: {status: 200}}
- {name: same, hostnames: [eu.shop.example], matches: [{path: {exact: /a/b}}, {path: {pattern: "/a/{id}"}, method: GET}], directResponse: {status: 200}}
- {name: other, hostnames: [shop.example], matches: [{path: {prefix: /a}}], directResponse: {status: 200}}
- {name: longer, hostnames: [eu.shop.example], matches: [{path: {prefix: /ab}}], directResponse: {status: 200}}
- {name: one, listeners: [http], directResponse: {status: 200}}
- {name: two, listeners: [https], matches: [{method: GET}, {headers: [{name: X-A, exact: "1"}]}], directResponse: {status: 200}}
- {name: get, matches: [{path: {exact: /}, method: GET}], directResponse: {status: 200}}
- {name: header, listeners: [https], matches: [{headers: [{name: x-a, exact: "1"}, {name: B, present: true}], method: PUT}], directResponse: {status: 200}}
- {name: put, listeners: [https], matches: [{method: PUT}], directResponse: {status: 200}}
`,
		"more.yaml": "routes:\n- {name: grpc, matches: [{grpc: {service: a}}], directResponse: {status: 200}}\n" +
			"- {name: method, listeners: [https], matches: [{grpc: {service: a, method: b}}], directResponse: {status: 200}}\n" +
			"- {name: rest, directResponse: {status: 200}}\n- {name: last, directResponse: {status: 200}}\n",
	})
	warnings, err := Check(file)
	require.NoError(t, err)
	var texts []string
	for _, w := range warnings {
		texts = append(texts, strings.ReplaceAll(w.Error(), filepath.Dir(file)+"/", ""))
	}
	const reason = ", because earlier routes match all of its requests: "
	assert.Equal(t, []string{
		"gateway.yaml:5:3: routes[1]: no request reaches route same" + reason + "shop",
		"gateway.yaml:10:3: routes[6]: no request reaches route get" + reason + "one, two",
		"gateway.yaml:11:3: routes[7]: no request reaches route header" + reason + "two",
		"more.yaml:3:3: routes[10]: no request reaches route method" + reason + "grpc",
		"more.yaml:5:3: routes[12]: no request reaches route last" + reason + "one, rest",
	}, texts)
	_, err = Check(write(t, map[string]string{"gateway.yaml": "routes: 1"}))
	require.Error(t, err)
}
