package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Routes differ if any value in the file differs, or the content of a file to which it refers.
func TestRouteEqual(t *testing.T) {
	dir := t.TempDir()
	const hash = "n:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n"
	text := base + `
- name: all
  matches: [{path: {prefix: /a}, headers: [{name: X-A, exact: ""}, {name: X-B, present: true}], clientCIDRs: [10.0.0.0/8]}]
  backendRefs: [{name: books, weight: 3}]
  retry: {codes: [502]}
  timeouts: {request: 3s}
  rateLimit: {requestsPerSecond: 1.5}
  basicAuth: {usersFile: users}
`
	parse := func(text, users string) *Route {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "users"), []byte(users), 0o600))
		c, err := Parse(filepath.Join(dir, "gateway.yaml"), []byte(text))
		require.NoError(t, err)
		return &c.Routes[len(c.Routes)-1]
	}
	before := parse(text, hash)
	require.True(t, before.Equal(parse(text, hash)))
	require.False(t, before.Equal(parse(text, "o"+hash)))
	for _, change := range [][2]string{
		{"prefix: /a", "prefix: /b"}, {"prefix: /a", "exact: /a"}, {`exact: ""`, "exact: x"}, {`exact: ""`, "present: true"},
		{"present: true", "present: false"}, {"10.0.0.0/8", "10.0.0.0/9"}, {"10.0.0.0/8", "11.0.0.0/8"}, {"weight: 3", "weight: 4"},
		{"[502]", "[503]"}, {"[502]", "[502, 503]"}, {"3s", "4s"}, {"1.5", "2"}, {"  rateLimit: {requestsPerSecond: 1.5}\n", ""},
		{"name: all", "name: any"}, {", headers:", ", method: GET, headers:"},
	} {
		require.False(t, before.Equal(parse(replaceOnce(t, text, change[0], change[1]), hash)), change)
	}
}
