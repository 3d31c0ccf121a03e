package kube

import (
	"bytes"
	"encoding/base64"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/internal/certtest"
)

var update = flag.Bool("update", false, "write the expected files of testdata")

// read returns the objects of a file. CERTIFICATE and KEY in the file are a certificate.
func read(t *testing.T, path string) (all []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	dir := t.TempDir()
	certtest.New(t, "books.example").Write(t, filepath.Join(dir, "books"), filepath.Join(dir, "ca.crt"))
	for word, file := range map[string]string{"CERTIFICATE": "books.crt", "KEY": "books.key"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		text = bytes.ReplaceAll(text, []byte(": "+word), []byte(": "+base64.StdEncoding.EncodeToString(content)))
	}
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		u := new(unstructured.Unstructured)
		err := d.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if u.Object != nil {
			all = append(all, u)
		}
	}
}

func settings() *config.KubernetesRoutes {
	return &config.KubernetesRoutes{
		ControllerName: "example.com/gateway", Addresses: []config.Text{"192.0.2.1", "lb.example"}, IngressHTTP: ":80", IngressHTTPS: ":443",
	}
}

// Each file of testdata has objects. The file with the suffix .want.yaml has the
// configuration and the status of the objects:
//
//	go test ./examples/gateway/kube -run TestTranslate -update
func TestTranslate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".want.yaml") })
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			objects := read(t, file)
			r := translate(t, objects, Unusable{Addresses: map[string]string{":81": "in use"}})
			want := strings.TrimSuffix(file, ".yaml") + ".want.yaml"
			got := configText(t, r) + "---\n" + statusText(t, r)
			if *update {
				require.NoError(t, os.WriteFile(want, []byte(got), 0o600))
			}
			expected, err := os.ReadFile(want)
			require.NoError(t, err)
			require.Equal(t, string(expected), got)

			// The order of the objects has no effect.
			slices.Reverse(objects)
			require.Equal(t, r.Fields, translate(t, objects, Unusable{Addresses: map[string]string{":81": "in use"}}).Fields)
		})
	}
}

// configText returns the configuration of r in YAML. Package sigs.k8s.io/yaml would fail for some
// characters, such as U+007F in the value of a header match.
func configText(t *testing.T, r *Result) string {
	t.Helper()
	var text bytes.Buffer
	to := yamlv3.NewEncoder(&text)
	to.SetIndent(2)
	to.CompactSeqIndent()
	require.NoError(t, to.Encode(r.Fields))
	require.NoError(t, to.Close())
	return text.String()
}

func translate(t *testing.T, all []*unstructured.Unstructured, u Unusable) *Result {
	t.Helper()
	o := new(Objects)
	for _, object := range all {
		require.NoError(t, o.Add(object))
	}
	r, err := Translate(o, settings(), u)
	require.NoError(t, err)
	return r
}

// Values that the API server accepts, but that the configuration cannot have, do not prevent the
// translation of other objects.
func TestTranslateUnusualValues(t *testing.T) {
	const class = `{kind: GatewayClass, metadata: {name: c}, spec: {controllerName: example.com/gateway}}`
	gateway := func(name, address, more string) string {
		return `{kind: Gateway, metadata: {name: ` + name + `, namespace: a}, spec: {gatewayClassName: c, addresses: [` + address + `], ` +
			`listeners: [{name: http, port: 80, protocol: HTTP}` + more + `]}}`
	}
	route := `{kind: HTTPRoute, metadata: {name: r, namespace: a}, spec: {parentRefs: [{name: g}], ` +
		`rules: [{matches: [{headers: [{name: X-A, value: "\u0001\u007f\ufeff\ufffe"}]}]}, {matches: [{path: {value: /}}]}]}}`
	for _, tt := range []struct {
		objects  []string
		want     string // in the statuses
		wantText string // in the configuration
	}{
		{[]string{gateway("g", "", `, {name: ip, port: 80, protocol: HTTP, hostname: 10.0.0.1}`)}, "want a DNS name as the host name", "port-80"},
		{[]string{gateway("g", "", `, {name: long, port: 80, protocol: HTTP, hostname: "*.`+strings.Repeat("a", 64)+`"}`)}, "want a DNS name as the host name", "port-80"},
		{[]string{gateway("g", "", ""), gateway("h", `{value: "fe80::1%a"}`, ""), gateway("i", `{value: "fe80::1%b"}`, "")}, "want an IP address without a zone", "port-80"},
		{[]string{gateway("g", "", ""), route}, "", `exact: "\x01\x7F\uFEFF\uFFFE"`},
	} {
		var all []*unstructured.Unstructured
		for _, text := range append(tt.objects, class) {
			u := new(unstructured.Unstructured)
			require.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
			all = append(all, u)
		}
		r := translate(t, all, Unusable{})
		assert.Contains(t, statusText(t, r), tt.want)
		assert.Contains(t, configText(t, r), tt.wantText)
	}
}

// An address that stays in use does not load the same configuration again at each attempt.
func TestApplyAddressInUse(t *testing.T) {
	var log bytes.Buffer
	w := &Watcher{settings: settings(), log: slog.New(slog.NewTextHandler(&log, nil)), informers: make(map[string]*informer)}
	for kind := range kinds {
		var err error
		w.informers[kind], err = w.informer(kind)
		require.NoError(t, err)
	}
	o := new(Objects)
	for _, object := range read(t, "testdata/listeners.yaml") {
		require.NoError(t, o.Add(object))
	}
	inUse, attempts, loaded := errors.New("in use"), 0, 0
	load := func(c *config.Config) error {
		attempts++
		if slices.ContainsFunc(c.Listeners, func(l config.Listener) bool { return l.Address == ":81" }) {
			return &config.AddressError{Address: ":81", Err: inUse}
		}
		loaded++
		return nil
	}
	for range 3 {
		require.NoError(t, w.apply(t.Context(), o, load))
		require.True(t, w.excluded)
	}
	require.Equal(t, []int{4, 1}, []int{attempts, loaded})
	require.Equal(t, 1, strings.Count(log.String(), `msg="cannot listen" address=:81 err="in use"`), log.String())
	failed := errors.New("failed")
	require.ErrorIs(t, w.apply(t.Context(), o, func(*config.Config) error { return failed }), failed)
	require.NoError(t, w.apply(t.Context(), o, load))
	require.Equal(t, 2, loaded, "load may have closed listeners")
}

func statusText(t *testing.T, r *Result) string {
	t.Helper()
	type line struct {
		Object string `json:"object"`
		Status any    `json:"status"`
	}
	var all []line
	for _, s := range r.Statuses {
		name := s.Object.Name
		if s.Object.Namespace != "" {
			name = s.Object.String()
		}
		all = append(all, line{s.Kind + " " + name, s})
	}
	text, err := yaml.Marshal(all)
	require.NoError(t, err)
	return string(text)
}

// The status of other controllers and unchanged transition times are kept.
func TestStatusMerge(t *testing.T) {
	object, err := yaml.YAMLToJSON([]byte(`
kind: HTTPRoute
metadata: {name: books, namespace: shop, generation: 3}
status:
  parents:
  - controllerName: other
    parentRef: {name: theirs}
    conditions: []
  - controllerName: example.com/gateway
    parentRef: {name: gone}
    conditions: []
  - controllerName: example.com/gateway
    parentRef: {name: ours}
    conditions:
    - {type: Accepted, status: "True", reason: Accepted, message: "", observedGeneration: 2, lastTransitionTime: "2020-01-01T00:00:00Z"}
    - {type: ResolvedRefs, status: "True", reason: ResolvedRefs, message: "", observedGeneration: 2, lastTransitionTime: "2020-01-01T00:00:00Z"}
    - {type: PartiallyInvalid, status: "True", reason: UnsupportedValue, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
    - {type: Audited, status: "True", reason: Audited, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
`))
	require.NoError(t, err)
	u := &unstructured.Unstructured{}
	require.NoError(t, u.UnmarshalJSON(object))
	s := &Status{Kind: "HTTPRoute", Parents: []ParentStatus{{
		ControllerName: "example.com/gateway", ParentRef: ParentReference{Reference: ObjectReference{Name: "ours"}},
		Conditions: []Condition{is("Accepted", ""), isNot("ResolvedRefs", "BackendNotFound", "no Service")},
	}}}
	status, err := s.Merge(u, "example.com/gateway", "2026-01-01T00:00:00Z")
	require.NoError(t, err)
	text, err := yaml.Marshal(status)
	require.NoError(t, err)
	assert.YAMLEq(t, `
parents:
- controllerName: other
  parentRef: {name: theirs}
  conditions: []
- controllerName: example.com/gateway
  parentRef: {name: ours}
  conditions:
  - {type: Accepted, status: "True", reason: Accepted, message: "", observedGeneration: 3, lastTransitionTime: "2020-01-01T00:00:00Z"}
  - {type: ResolvedRefs, status: "False", reason: BackendNotFound, message: no Service, observedGeneration: 3, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Audited, status: "True", reason: Audited, message: "", lastTransitionTime: "2020-01-01T00:00:00Z"}
`, string(text))

	u.Object["status"] = status
	status, err = s.Merge(u, "example.com/gateway", "2027-01-01T00:00:00Z")
	require.NoError(t, err)
	assert.Nil(t, status, "nothing changes")
}

func TestHostIntersection(t *testing.T) {
	for _, c := range []struct {
		a, b, want string
		ok         bool
	}{
		{"", "", "", true},
		{"", "books.example", "books.example", true},
		{"*.example", "", "*.example", true},
		{"*.example", "books.example", "books.example", true},
		{"*.example", "eu.books.example", "eu.books.example", true},
		{"*.example", "*.books.example", "*.books.example", true},
		{"*.example", "example", "", false},
		{"*.example", "*.example", "*.example", true},
		{"books.example", "*.example", "books.example", true},
		{"books.example", "carts.example", "", false},
		{"*.books.example", "*.carts.example", "", false},
		{"*.example", "counterexample", "", false},
	} {
		got, ok := intersect(c.a, c.b)
		assert.Equal(t, c.want, got, "%s and %s", c.a, c.b)
		assert.Equal(t, c.ok, ok, "%s and %s", c.a, c.b)
		got, ok = intersect(c.b, c.a)
		assert.Equal(t, c.want, got, "%s and %s", c.b, c.a)
		assert.Equal(t, c.ok, ok, "%s and %s", c.b, c.a)
	}
}
