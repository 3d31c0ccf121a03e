package linkerd

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/profiles"
)

func TestRequestedTargets(t *testing.T) {
	nets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, tt := range map[string]struct {
		opts   []Option
		target string
		want   bool
	}{
		"no limit, a name":              {nil, "web:80", true},
		"no limit, an address":          {nil, "10.0.0.1:80", true},
		"below the suffix":              {[]Option{WithSuffixes("svc.cluster.local.")}, "web.default.svc.cluster.local:80", true},
		"with a dot at the end":         {[]Option{WithSuffixes("svc.cluster.local")}, "web.default.svc.cluster.local.:80", true},
		"the suffix itself":             {[]Option{WithSuffixes("svc.cluster.local.")}, "svc.cluster.local:80", true},
		"whatever the case":             {[]Option{WithSuffixes("SVC.cluster.local.")}, "web.default.svc.Cluster.Local:80", true},
		"labels are whole":              {[]Option{WithSuffixes("svc.cluster.local.")}, "websvc.cluster.local:80", false},
		"another name":                  {[]Option{WithSuffixes("svc.cluster.local.")}, "example.com:443", false},
		"one of several suffixes":       {[]Option{WithSuffixes("a.", "example.com")}, "www.example.com:443", true},
		"the root is all names":         {[]Option{WithSuffixes(".")}, "example.com:443", true},
		"an empty list, split":          {[]Option{WithSuffixes(strings.Split("", ",")...)}, "web.default.svc.cluster.local:80", false},
		"an empty one among others":     {[]Option{WithSuffixes(strings.Split(" ,svc.cluster.local.", ",")...)}, "example.com:443", false},
		"with a space before":           {[]Option{WithSuffixes(strings.Split("a., example.com.", ",")...)}, "www.example.com:443", true},
		"no names":                      {[]Option{WithSuffixes()}, "web.default.svc.cluster.local:80", false},
		"names alone, an address":       {[]Option{WithSuffixes(".")}, "10.0.0.1:80", false},
		"in a network":                  {[]Option{WithNetworks(nets...)}, "10.1.2.3:80", true},
		"in no network":                 {[]Option{WithNetworks(nets...)}, "192.168.0.1:80", false},
		"IPv6 in a network":             {[]Option{WithNetworks(nets...)}, "[fd00::1]:80", true},
		"IPv4 as IPv6":                  {[]Option{WithNetworks(nets...)}, "[::ffff:10.0.0.1]:80", true},
		"IPv4 in no IPv6 network":       {[]Option{WithNetworks(netip.MustParsePrefix("::/0"))}, "10.0.0.1:80", false},
		"IPv4 as IPv6, all IPv6":        {[]Option{WithNetworks(netip.MustParsePrefix("::/0"))}, "[::ffff:10.0.0.1]:80", false},
		"networks alone, a name":        {[]Option{WithNetworks(nets...)}, "web.default.svc.cluster.local:80", false},
		"both, a name":                  {[]Option{WithNetworks(nets...), WithSuffixes("svc.cluster.local.")}, "web.a.svc.cluster.local:1", true},
		"both, an address":              {[]Option{WithNetworks(nets...), WithSuffixes("svc.cluster.local.")}, "10.0.0.1:1", true},
		"a name without a port":         {[]Option{WithSuffixes("svc.cluster.local.")}, "web.a.svc.cluster.local", true},
		"an address without a port":     {[]Option{WithNetworks(nets...)}, "10.0.0.1", true},
		"an IPv6 address with its zone": {[]Option{WithNetworks(nets...)}, "[fd00::1%eth0]:80", true},
	} {
		t.Run(name, func(t *testing.T) {
			var o options
			for _, opt := range tt.opts {
				opt(&o)
			}
			require.Equal(t, tt.want, o.requests(tt.target))
		})
	}
}

// A target outside of the suffixes needs no call.
func TestWatchExcludedTarget(t *testing.T) {
	n, conn := 0, new(holding)
	for p, err := range New(conn, WithSuffixes("svc.cluster.local.")).Watch(t.Context(), "example.com:443") {
		require.Nil(t, p)
		require.ErrorIs(t, err, profiles.ErrNoProfile)
		require.ErrorContains(t, err, `"example.com:443"`)
		n++
	}
	require.Equal(t, 1, n)
	require.Zero(t, conn.open)
}

func TestNewPanicsWithoutConnection(t *testing.T) {
	require.PanicsWithValue(t, "linkerd: New: the connection is nil; want a gRPC connection to a destination controller",
		func() { New(nil) })
}
