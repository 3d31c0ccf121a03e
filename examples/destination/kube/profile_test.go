package kube

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gotower/gotower/examples/destination/controller"
)

// The controller serves a ServiceProfile if and only if its validation succeeds. The rows include
// those of linkerd's own webhook.
func TestValidateServiceProfile(t *testing.T) {
	condition := func(text string) string { return "routes: [{name: r, condition: " + text + "}]" }
	route := func(field string) string { return condition("{method: GET}, " + field) }
	class := func(text string) string { return route("responseClasses: [" + text + "]") }
	status := func(text string) string { return class("{condition: {status: " + text + "}}") }
	const (
		service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}\n---\n"

		inRoute, inCondition = "spec.routes[0].", "spec.routes[0].condition"
		inClass, inStatus    = "spec.routes[0].responseClasses[0]", "spec.routes[0].responseClasses[0].condition.status"
		matchFields          = "unknown field: there are all, any, method, not, pathRegex"
		noMatch              = "want method, pathRegex, all, any or not; pathRegex: /.* matches everything"
		empty                = ": empty: write a value, or take it out"
		weight               = `spec.dstOverrides[0].weight "`
	)
	for _, test := range []struct{ spec, want string }{
		{"", ""},
		{"routes: [{name: name-1, condition: {method: GET, pathRegex: /route-1}}]", ""},
		{`retryBudget: {minRetriesPerSecond: 5, retryRatio: 0.2, ttl: 10s}
  routes:
  - name: name-1
    condition: {method: GET, pathRegex: /route-1, any: [{all: [{method: POST}, {pathRegex: '/authors/\d+'}]}, {not: {method: DELETE}}]}
    isRetryable: true
    timeout: 300ms
    responseClasses: [{condition: {status: {min: 500, max: 599}}, isFailure: true}, {condition: {status: {min: 404}}}]
  dstOverrides: [{authority: "web-2.shop.svc.cluster.local:80", weight: 500m}, {authority: "web.shop.svc.cluster.local:80", weight: 1}]
  opaquePorts: {"3306": {}}`, ""},
		{route(`timeout: ""`), ""},
		{route("timeout: 1ns"), ""},

		{"foo: bar", "spec.foo: unknown field: there are dstOverrides, opaquePorts, retryBudget, routes"},
		{route("foo: bar"), inRoute + "foo: unknown field: there are condition, isRetryable, name, responseClasses, timeout"},
		{condition("{foo: bar, method: GET}"), inCondition + ".foo: " + matchFields},
		{condition("{not: {all: [{foo: bar}]}}"), inCondition + ".not.all[0].foo: " + matchFields},
		{"routes: [null]", "spec.routes[0]" + empty},
		{"routes: [{name: r}]", inCondition + ": missing: condition is required"},
		{condition("null"), inCondition + ": missing: condition is required"},
		{"routes: [{condition: {method: GET}}]", inRoute + "name: missing: name is required"},
		{`routes: [{name: "", condition: {method: GET}}]`, inRoute + `name: want a text that is not empty`},
		{condition("{method: null}"), inCondition + ": " + noMatch},
		{condition("{any: [{all: []}]}"), inCondition + ".any[0]: " + noMatch},
		{condition("{all: [null]}"), inCondition + ".all[0]" + empty},
		{condition("{method: get}"), inCondition + `.method "get": methods are case-sensitive: write GET`},
		{condition("{pathRegex: (}"), inCondition + ".pathRegex \"(\": error parsing regexp: missing closing ): `(`"},
		{route(`isRetryable: "true"`), inRoute + `isRetryable "true": want a value without quotes`},
		{route("timeout: one-second"), inRoute + `timeout "one-second": want a duration, such as 250ms or 10s`},
		{route("timeout: -1s"), inRoute + `timeout "-1s": want a duration of more than 0`},
		{class("null"), inClass + empty},
		{class("{condition: null}"), inClass + ".condition: missing: condition is required"},
		{class("{condition: {all: [{status: {min: 500}}]}}"), inClass + ".condition.all: unknown field: there are status"},
		{status("{}"), inStatus + ` "0-0": want a range within 100-599`},
		{status("{min: 500, max: 600}"), inStatus + ` "500-600": want a range within 100-599`},
		{status("{min: 1}"), inStatus + ` "1-1": want a range within 100-599`},
		{status("{min: 300, max: 200}"), inStatus + ` "300-200": want a range within 100-599`},
		{status("{min: false}"), inStatus + `.min "false": want a whole number from 0 to 4294967295`},
		{status(`{min: "500"}`), inStatus + `.min "500": want a value without quotes`},
		{"retryBudget: {minRetriesPerSecond: 5, retryRatio: 0.2}", "spec.retryBudget.ttl: missing: ttl is required"},
		{"retryBudget: {minRetriesPerSecond: 5, retryRatio: 0.2, ttl: foo}", `spec.retryBudget.ttl "foo": want a duration from 1s to 1m`},
		{"retryBudget: {minRetriesPerSecond: 5, retryRatio: -0.2, ttl: 10s}",
			`spec.retryBudget.retryRatio "-0.2": want a number from 0 to 1000`},
		{"retryBudget: {minRetriesPerSecond: -5, retryRatio: 0.2, ttl: 10s}",
			`spec.retryBudget.minRetriesPerSecond "-5": want a whole number from 0 to 2147483647`},
		{"dstOverrides: [{authority: web.shop.svc.cluster.local, weight: 1}]",
			`spec.dstOverrides[0].authority "web.shop.svc.cluster.local": want a name with a port, such as web.shop.svc.cluster.local:80`},
		{"dstOverrides: [{authority: 'a:80', weight: much}]", weight + `much": want a quantity from 0 to 2147483, such as 500m`},
		{"dstOverrides: [{authority: 'a:80', weight: -1}]", weight + `-1": want a quantity from 0 to 2147483, such as 500m`},
		{"dstOverrides: [{weight: 1}]", "spec.dstOverrides[0].authority: missing: authority is required"},
		{`opaquePorts: {http: {}}`, `spec.opaquePorts.http: want a port from 1 to 65535 as the name of a field`},
		{`opaquePorts: ["80"]`, `spec.opaquePorts: want a mapping, not a list`},
	} {
		text := "apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {name: web.shop.svc.cluster.local, namespace: shop}\n"
		if test.spec != "" {
			text += "spec:\n  " + test.spec
		}
		raw, err := yaml.YAMLToJSON([]byte(text))
		require.NoError(t, err, text)
		err = ValidateServiceProfile(raw, "cluster.local")
		c := fill(t, documents(t, service+text)...)
		var log strings.Builder
		c.log = slog.New(slog.NewTextHandler(&log, nil))
		d, _ := c.Destination(controller.Client{}, "web.shop.svc.cluster.local", 80, true)
		if test.want == "" {
			require.NoError(t, err, text)
			require.Empty(t, log.String())
			continue
		}
		require.EqualError(t, err, test.want, text)
		require.Equal(t, &controller.Profile{}, d.Profile, text)
		require.Contains(t, log.String(), "invalid ServiceProfile is ignored")
	}
	for _, name := range []string{"web", "web.other.svc.cluster.local", "web.shop.svc.cluster.example", "a.web.shop.svc.cluster.local"} {
		err := ValidateServiceProfile([]byte(`{"metadata": {"name": "`+name+`", "namespace": "shop"}}`), "cluster.local")
		require.EqualError(t, err, `metadata.name "`+name+`": want SERVICE.shop.svc.cluster.local for a Service in the same namespace`)
	}
}
