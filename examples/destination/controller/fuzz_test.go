package controller

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file is rejected with errors that have existing lines, or its configuration is accepted
// by Set.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../destination.yaml")
	require.NoError(f, err)
	f.Add(example)
	for _, seed := range []string{
		"", "destinations:", "destinations: {}\n---\n", "destinations: &a {x: *a}", "destinations:\n  a:\n  b\n c: d",
		"destinations: {a.b: {exists: false}, 1.2.3.4: {profile: {}}}",
		route("match: {all: [{path: /a}, {any: [{method: GET}]}], not: {path: /b}}\n"),
		in("endpoints: [{addr: '[::1]:80', identity: spiffe://x/y, server_name: z, authority: 'q:1', weight: 3}]"),
		in("profile: {splits: [{authority: 'a:80', weight: 0}], retry_budget: {ratio: 1e3, ttl: 1m}}"),
		in("policy: {failureAccrual: {}, httpRoutes: [{name: r, rules: [{retry: {conditions: [5xx]}, backendRefs: [{name: a}]}]}]}"),
		"destinations: {}\nservers: [{name: s, port: 80, authorizationPolicies: [{name: a, identities: ['*']}]}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f", data)
		if err == nil {
			require.NoError(t, New(nil).Set(cfg))
			return
		}
		mistakes := fileErrors(err)
		require.NotEmpty(t, mistakes)
		lines := 1 + bytes.Count(data, []byte("\n"))
		for i, m := range mistakes {
			require.NotEmpty(t, m.Reason)
			require.LessOrEqual(t, 1, m.Line, m)
			require.LessOrEqual(t, m.Line, lines, m)
			require.True(t, i == 0 || mistakes[i-1].Line <= m.Line, "in the order of the lines")
		}
	})
}
