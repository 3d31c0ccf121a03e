package settings_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// Who believes a PROXY header is told what to set.
func TestProxyProtocolIsForOwnAddresses(t *testing.T) {
	for _, name := range []string{"ORIGIN", "INBOUND_ORIGIN"} {
		s, err := settings.Read(from(least(name, "proxy-protocol")))
		require.NoError(t, err)
		require.Equal(t, []string{
			"GOTOWER_" + name + "=proxy-protocol sends any client on to whatever address it says: set LINKERD2_PROXY_INBOUND_IPS" +
				" to the addresses of this pod, and let none but the load balancer reach LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
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
