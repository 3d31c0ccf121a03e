package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A description has what the limit counts by, and the keys of a global limit.
func TestDescribeLimits(t *testing.T) {
	const service = "  dns: {name: \"carts.example:80\"}\n"
	text := replaceOnce(t, base, service, service+"rateLimitService: {backendRef: {name: carts}, domain: shop}\n")
	for limits, want := range map[string]string{
		"":                                    "",
		"rateLimit: {requestsPerSecond: 2.5}": "2.5 requests a second per route",
		"rateLimit: {requestsPerSecond: 1, per: Client}":                    "1 requests a second per client",
		"rateLimit: {requestsPerSecond: 1, per: Header, header: X-API-Key}": "1 requests a second per value of X-API-Key",
		"globalRateLimits: [{actions: [{genericKey: {descriptorValue: orders}}, {remoteAddress: {}}]}]": "global limit of " +
			"generic_key=orders, remote_address in the domain shop",
	} {
		c, err := Parse("gateway.yaml", []byte(replaceOnce(t, text, "  backendRefs:\n", "  "+limits+"\n  backendRefs:\n")))
		require.NoError(t, err)
		require.Equal(t, want, c.Routes[0].DescribeLimits())
	}
}
