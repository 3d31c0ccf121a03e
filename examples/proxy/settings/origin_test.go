package settings_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// A PROXY header without INBOUND_IPS causes a warning.
func TestProxyProtocolWithoutIPs(t *testing.T) {
	for _, name := range []string{"ORIGIN", "INBOUND_ORIGIN"} {
		s, err := settings.Read(from(least(name, "proxy-protocol")))
		require.NoError(t, err)
		require.Equal(t, []string{
			"GOTOWER_" + name + "=proxy-protocol forwards a client to any address in its PROXY header: set LINKERD2_PROXY_INBOUND_IPS" +
				" to the addresses of this pod, and permit only the load balancer to reach LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
		}, s.Warnings)
		s, err = settings.Read(from(least(name, "proxy-protocol", "INBOUND_IPS", "10.1.2.3")))
		require.NoError(t, err)
		require.Empty(t, s.Warnings)
	}
	for _, fine := range [][2]string{{"ORIGIN", "redirected"}, {"ORIGIN", "fixed:127.0.0.1:80"}, {"OUTBOUND_ORIGIN", "proxy-protocol"}} {
		s, err := settings.Read(from(least(fine[0], fine[1])))
		require.NoError(t, err)
		require.Empty(t, s.Warnings, fine)
	}
}
