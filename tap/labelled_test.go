package tap

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

// labelledAccess returns labels of the client of each request.
type labelledAccess struct{ basicAccessor[*call, *reply] }

func (labelledAccess) SourceLabels(c *call) map[string]string {
	if c.path == "/unknown" {
		return nil
	}
	return map[string]string{"tls": "true", "client_id": c.path}
}

// podAccess returns the pod of each client.
type podAccess struct{ basicAccessor[*call, *reply] }

func (podAccess) SourceLabels(*call) map[string]string { return map[string]string{"pod": "client-1"} }

// A request is in the same row with and without watchers.
func TestRowNamesWatchedOrNot(t *testing.T) {
	reg := new(Registry)
	c := countAll(t, reg, nil)
	svc := Layer[*call, *reply](reg, podAccess{basicAccessor[*call, *reply]{newAccess()}}, Inbound)(respond("x"))
	send(t, svc, get("/"))
	watchAll(t, reg)
	send(t, svc, get("/"))
	require.EqualValues(t, 2, only(t, c).GetCount())
}

// The labels of source_meta and destination_meta.
func TestLabels(t *testing.T) {
	type labels = map[string]string
	for name, tt := range map[string]struct {
		opts        []Option
		path        string
		source, dst labels
	}{
		"inbound":                       {[]Option{Inbound}, "/web", labels{"tls": "true", "client_id": "/web"}, labels{}},
		"inbound, more is known of all": {[]Option{Inbound, WithSourceLabels(labels{"tls": "passthru", "sni": "x"})}, "/web", labels{"tls": "passthru", "sni": "x", "client_id": "/web"}, labels{}},
		"inbound, nothing is known":     {[]Option{Inbound, WithSourceLabels(labels{"a": "b"})}, "/unknown", labels{"a": "b"}, labels{}},
		"inbound, destination":          {[]Option{Inbound, WithDestination(netip.AddrPort{}, labels{"tls": "loopback"})}, "/unknown", labels{}, labels{"tls": "loopback"}},
		"outbound":                      {[]Option{Outbound, WithSourceLabels(hostLabels), WithDestination(serverAddr, podLabels)}, "/web", hostLabels, podLabels},
	} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			w := watchOn(t, reg, &tappb.WatchRequest{})
			send(t, Layer[*call, *reply](reg, labelledAccess{basicAccessor[*call, *reply]{newAccess()}}, tt.opts...)(respond("x")), get(tt.path))
			got := events(w)
			require.Equal(t, "qre", kinds(got))
			for _, e := range got {
				require.Equal(t, tt.source, e.SourceLabels)
				require.Equal(t, tt.dst, e.DestinationLabels)
			}
		})
	}
}
