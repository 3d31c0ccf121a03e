package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A listener waits for the server name only if one of its own routes depends on it.
func TestNeedsServerName(t *testing.T) {
	c, err := Parse("gateway.yaml", []byte(`
listeners: [{name: a, address: ":80", protocol: TCP}, {name: b, address: ":81", protocol: TCP}]
services: [{name: s, static: {addresses: ["10.0.0.1:80"]}}]
tcpRoutes:
- {name: named, listeners: [a], hostnames: [a.example], backendRefs: [{name: s}]}
- {name: all, backendRefs: [{name: s}]}
`))
	require.NoError(t, err)
	require.True(t, c.NeedsServerName("a"))
	require.False(t, c.NeedsServerName("b"))
}
