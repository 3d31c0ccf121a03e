package sidecar

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer/tcplayer"
)

// The outbound path does not connect to the proxy's ports on this machine. The inbound path does
// not connect to them at any address.
func TestOwnPortsRefuse(t *testing.T) {
	addrPort := netip.MustParseAddrPort
	p := &Proxy{
		paths: []path{{name: outboundPath, addr: addrPort("0.0.0.0:4140")}, {name: inboundPath, addr: addrPort("0.0.0.0:4143")}},
		Admin: "127.0.0.1:4191", Tap: "127.0.0.1:4192",
		config: Config{Settings: settings.Settings{Inbound: settings.Inbound{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}},
	}
	var outward, inward ownPorts
	p.setOwnPorts(&outward, &inward, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	for addr, refused := range map[string]struct{ outward, inward bool }{
		"192.0.2.1:4140":          {true, true},
		"192.0.2.1:4143":          {true, true},
		"10.0.0.1:4140":           {true, true},
		"[::ffff:10.0.0.1]:4140":  {true, true},
		"127.0.0.2:4140":          {true, true},
		"[::1]:4140":              {true, true},
		"0.0.0.0:4140":            {true, true},
		"[::]:4140":               {true, true},
		"10.0.0.2:4140":           {false, true}, // another pod's proxy
		"127.0.0.1:4143":          {true, true},
		"10.0.0.1:4143":           {true, true},
		"10.0.0.2:4143":           {false, true},
		"127.0.0.1:4191":          {true, true},
		"[::ffff:127.0.0.1]:4191": {true, true},
		"0.0.0.0:4191":            {true, true},
		"10.0.0.2:4191":           {false, true}, // Prometheus asks for it
		"127.0.0.3:4192":          {true, true},
		"127.0.0.1:4190":          {false, false}, // without a listener
		"127.0.0.1:80":            {false, false},
	} {
		for _, side := range []struct {
			*ownPorts
			refuses bool
		}{{&outward, refused.outward}, {&inward, refused.inward}} {
			err := side.refuse(addrPort(addr))
			require.Equal(t, side.refuses, err != nil, addr)
			if err != nil {
				require.ErrorIs(t, err, tcplayer.ErrLoop)
				require.ErrorContains(t, err, addr)
			}
		}
	}
}

// The addresses of the machine include loopback.
func TestLocalAddrs(t *testing.T) {
	local, err := localAddrs()
	require.NoError(t, err)
	require.Contains(t, local, netip.MustParseAddr("127.0.0.1"))
}
