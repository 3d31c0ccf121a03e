package k8s

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestParseTarget(t *testing.T) {
	for _, tt := range []struct {
		text string
		want target
	}{
		{"web.prod:80", target{object{"prod", "web"}, portRef{number: 80}}},
		{"web.prod:http", target{object{"prod", "web"}, portRef{name: "http"}}},
		{"web.prod.svc:65535", target{object{"prod", "web"}, portRef{number: 65535}}},
		{"web.prod.svc.cluster.local:080", target{object{"prod", "web"}, portRef{number: 80}}},
		{"web.prod.svc.cluster.local.:80", target{object{"prod", "web"}, portRef{number: 80}}},
		{"Web.Prod.SVC.Cluster.Local:HTTP", target{object{"prod", "web"}, portRef{name: "http"}}},
		{"web:80", target{object{"mine", "web"}, portRef{number: 80}}},
		{"web.svc:80", target{object{"svc", "web"}, portRef{number: 80}}},
		{"svc.svc.svc:80", target{object{"svc", "svc"}, portRef{number: 80}}},
		{"3scale.prod:1-a", target{object{"prod", "3scale"}, portRef{name: "1-a"}}},
	} {
		got, err := parseTarget(tt.text, "mine", "cluster.local")
		require.NoError(t, err, tt.text)
		assert.Equal(t, tt.want, got, tt.text)
	}
}

func TestParseTargetErrors(t *testing.T) {
	for _, tt := range []struct{ text, reason string }{
		{"", "missing port"},
		{"web.prod", "missing port: add the number of a Service's port"},
		{"web:80", "missing namespace: write name.namespace, or use WithNamespace"},
		{":80", "missing namespace"},
		{".prod:80", `the name of the Service "" is empty`},
		{"web.:80", "a dot at the end is for a whole name, as name.namespace.svc.cluster.local. is"},
		{"web..svc:80", `the namespace "" is empty`},
		{"web.prod:", `the port "" is neither a number nor a name: as a name it is empty`},
		{"web.prod:0", "the port 0 is not from 1 to 65535"},
		{"web.prod:65536", "the port 65536 is not from 1 to 65535"},
		{"web.prod:-1", "begins or ends with a hyphen"},
		{"web.prod:ht_tp", `has the character '_'`},
		{"we/b.prod:80", `the name of the Service "we/b" has the character '/'; there may be a-z, 0-9 and -`},
		{"/web.prod:80", `has the character '/'`},
		{"-web.prod:80", `the name of the Service "-web" begins or ends with a hyphen`},
		{"web.prod-:80", `the namespace "prod-" begins or ends with a hyphen`},
		{strings.Repeat("a", 64) + ".prod:80", "has 64 characters; 63 are the most"},
		{"10.0.0.1:80", "an IP address is not the name of a Service"},
		{"[fd00::1]:80", "an IP address is not the name of a Service"},
		{"fd00::1", "an IP address is not the name of a Service"},
		{"pod-0.web.prod.svc.cluster.local:80", "not the name of a Service: write name.namespace"},
		{"web.svc.cluster.local:80", "not the name of a Service"},
		{"web.prod.svc.example.org:80", "set the option WithClusterDomain"},
		{"www.example.org:80", "not the name of a Service"},
	} {
		_, err := parseTarget(tt.text, "", "cluster.local")
		require.ErrorIs(t, err, resolve.ErrUnresolvable, tt.text)
		assert.ErrorContains(t, err, tt.reason, tt.text)
		assert.ErrorContains(t, err, "k8s: target ")
	}
}

func TestOptionsOfNames(t *testing.T) {
	o := newOptions([]Option{WithNamespace("prod"), WithClusterDomain(".Example.Org.")})
	got, err := parseTarget("web.a.svc.example.org:80", o.namespace, o.domain)
	require.NoError(t, err)
	assert.Equal(t, object{"a", "web"}, got.object)
	_, err = parseTarget("web:80", "Not a namespace", "cluster.local")
	require.ErrorContains(t, err, `the namespace "Not a namespace" has the character 'N'`)
	require.ErrorIs(t, err, resolve.ErrUnresolvable)
}

// A parsed target has names that the API server accepts, and is the same after writing
// and parsing it again.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{
		"web.prod:80", "web.prod.svc.cluster.local.:http", "web:80", "10.0.0.1:80", "[fd00::1]:80", "a.b:0", "..:", "A.B:C",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseTarget(s, "mine", "cluster.local")
		if err != nil {
			require.ErrorIs(t, err, resolve.ErrUnresolvable)
			return
		}
		require.Empty(t, notLabel(got.name))
		require.Empty(t, notLabel(got.namespace))
		require.NotEqual(t, got.port.number == 0, got.port.name == "")
		again, err := parseTarget(got.object.String()+".svc.cluster.local:"+strings.Trim(got.port.String(), `"`), "", "cluster.local")
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
