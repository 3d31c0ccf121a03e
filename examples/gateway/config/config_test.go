package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gotower/gotower/examples/gateway/internal/certtest"
	"github.com/gotower/gotower/internal/yamlfile"
)

// load parses a file of the folder above, with certificates beside it.
func load(t *testing.T, name string) (*Config, error) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", name))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tls"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "public"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "error.html"), []byte("<p>Sorry</p>"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubeconfig.yaml"), []byte("kind: Config\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users.htpasswd"), []byte("# users\nemma:$2y$04$Bh8p3g1Gdm3Vd8SL9H9XVuT8KQ5mOkj3DqOzhk1Qbq1IuCYmYxp8q\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "keys.json"), []byte(`{"keys": [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "new"}]}`), 0o600))
	certtest.New(t, "books.example").Write(t, filepath.Join(dir, "tls", "books"), filepath.Join(dir, "tls", "ca.crt"))
	return Parse(filepath.Join(dir, name), data)
}

// The complete example is valid and has every field of the format.
func TestConfigCompleteExample(t *testing.T) {
	c, err := load(t, "complete.yaml")
	require.NoError(t, err)
	require.Len(t, c.Routes, 7)
	require.Len(t, c.Contents(), 15) // with the list of included files
	// Relative paths start at the folder of the file.
	dir := filepath.Dir(c.Contents()[0].Path)
	require.Equal(t, filepath.Join(dir, "kubeconfig.yaml"), c.Kubernetes.Kubeconfig.Path)
	require.Equal(t, filepath.Join(dir, "acme"), c.Listeners[3].TLS.ACME.CacheDirectory)

	data, err := os.ReadFile("../complete.yaml")
	require.NoError(t, err)
	var doc yaml.Node
	require.NoError(t, yaml.Unmarshal(data, &doc))
	used := map[string]bool{}
	collect(reflect.TypeFor[Config](), doc.Content[0], used)
	var all func(reflect.Type)
	visited := map[reflect.Type]bool{}
	all = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if items, ok := reflect.TypeAssert[interface{ itemType() reflect.Type }](reflect.New(typ)); ok {
			typ = items.itemType()
		}
		if typ.Kind() != reflect.Struct || visited[typ] {
			return
		}
		visited[typ] = true
		for _, f := range yamlfile.FieldsOf(typ) {
			id := typ.Name() + "." + f.Tag.Get("yaml")
			if u, ok := reflect.TypeAssert[union](reflect.New(typ)); !ok || !slices.Contains(u.oneOf(), f.Tag.Get("yaml")) {
				require.True(t, used[id], "complete.yaml does not have %s", id)
			}
			all(f.Type)
		}
	}
	all(reflect.TypeFor[Config]())
}

// collect records the fields of typ that n has.
func collect(typ reflect.Type, n *yaml.Node, used map[string]bool) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case typ.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			collect(typ.Elem(), item, used)
		}
	case typ.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			for _, f := range yamlfile.FieldsOf(typ) {
				if name := n.Content[i].Value; name == f.Tag.Get("yaml") {
					used[typ.Name()+"."+name] = true
					collect(f.Type, n.Content[i+1], used)
				}
			}
		}
	}
}

// A version changes with the service and its files, except for the settings that change in place.
func TestConfigVersions(t *testing.T) {
	parse := func(text string) *Config {
		t.Helper()
		c, err := Parse("gateway.yaml", []byte(text))
		require.NoError(t, err)
		return c
	}
	const text = `
listeners: [{name: http, address: ":80"}]
services:
- {name: a, static: {addresses: ["10.0.0.1:80"]}}
- {name: b, static: {addresses: ["10.0.0.2:80"]}}
routes:
- {name: a, backendRefs: [{name: a}]}
- {name: b, backendRefs: [{name: b}]}
`
	before := parse(text)
	require.Equal(t, before, parse(text))
	after := parse(replaceOnce(t, text, "10.0.0.2", "10.0.0.3"))
	require.Equal(t, before.Routes, after.Routes)
	require.Equal(t, before.Services[1].Version(), after.Services[1].Version())
	require.NotEqual(t, before.Services[1].Settings(), after.Services[1].Settings())
	for _, change := range []string{
		"loadBalancer: {policy: RoundRobin}", "loadBalancer: {slowStart: 3s}", "sessionPersistence: {sessionName: s}",
		"queue: {capacity: 7}", "circuitBreakers: {maxRequests: 7}", "outlierDetection: {}",
	} {
		after = parse(replaceOnce(t, text, "{name: b, static", "{name: b, "+change+", static"))
		require.Equal(t, before.Services[1].Version(), after.Services[1].Version(), change)
		require.NotEqual(t, before.Services[1].Settings(), after.Services[1].Settings(), change)
	}
	for _, change := range []string{
		"protocol: HTTP1", "connectTimeout: 3s", "tls: {serverName: b.example}", "healthCheck: {tcp: true}",
		"circuitBreakers: {maxConnections: 7}",
	} {
		after = parse(replaceOnce(t, text, "{name: b, static", "{name: b, "+change+", static"))
		require.NotEqual(t, before.Services[1].Version(), after.Services[1].Version(), change)
	}
}

// The routes of a cluster must not be served by a listener of the file.
func TestMergeListeners(t *testing.T) {
	file, err := Parse("gateway.yaml", []byte(base))
	require.NoError(t, err)
	for address, text := range map[string]string{
		":80":            "{name: http, address: \":80\"}",
		"127.0.0.1:8080": "{name: port-8080, address: \"127.0.0.1:8080\"}",
	} {
		var fields map[string]any
		require.NoError(t, yaml.Unmarshal([]byte("kubernetes: {}\nlisteners: ["+text+"]\n"), &fields))
		cluster, err := Generated(fields, nil)
		require.NoError(t, err)
		_, err = file.Merge(cluster)
		var unusable *AddressError
		require.ErrorAs(t, err, &unusable)
		require.Equal(t, address, unusable.Address)
		require.EqualError(t, err, "the address or the name of listener http in the file")
	}
}

// The routes of a cluster follow those of the file, and have other names.
func TestMergeRoutes(t *testing.T) {
	const fields = `
services: [{name: %[1]s, static: {addresses: ["10.0.0.1:80"]}}]
routes: [{name: %[2]s, backendRefs: [{name: %[1]s}]}]
tcpRoutes: [{name: %[3]s, backendRefs: [{name: %[1]s}]}]
`
	parse := func(service, route, tcpRoute string) *Config {
		t.Helper()
		c, err := Parse("gateway.yaml", fmt.Appendf(nil, "kubernetes: {}"+fields, service, route, tcpRoute))
		require.NoError(t, err)
		return c
	}
	file := parse("a", "b", "c")
	merged, err := file.Merge(parse("d", "e", "f"))
	require.NoError(t, err)
	require.Equal(t, []Name{"a", "d"}, []Name{merged.Services[0].Name, merged.Services[1].Name})
	require.Equal(t, []Name{"b", "e"}, []Name{merged.Routes[0].Name, merged.Routes[1].Name})
	require.Equal(t, []Name{"c", "f"}, []Name{merged.TCPRoutes[0].Name, merged.TCPRoutes[1].Name})
	_, err = file.Merge(parse("a", "e", "f"))
	require.EqualError(t, err, "the file and the cluster have a service a")
	_, err = file.Merge(parse("d", "b", "f"))
	require.EqualError(t, err, "the file and the cluster have a route b")
	_, err = file.Merge(parse("d", "e", "c"))
	require.EqualError(t, err, "the file and the cluster have a TCP route c")
}

func TestPathNormalForm(t *testing.T) {
	var p Path
	require.NoError(t, p.parse("/%61/../b%2F"))
	require.Equal(t, Path("/b%2F"), p)
	require.EqualError(t, p.parse("/a/..%2Fb"), "a path that all services read in the same way")
}
