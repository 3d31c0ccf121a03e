package linkerd

import (
	"net/netip"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/resolve"
)

var nowhere = &net.TcpAddress{Port: 80} // an address that cannot be read

func addMessage(addrs ...*net.TcpAddress) *destination.Update {
	set := &destination.WeightedAddrSet{}
	for _, a := range addrs {
		set.Addrs = append(set.Addrs, &destination.WeightedAddr{Addr: a})
	}
	return &destination.Update{Update: &destination.Update_Add{Add: set}}
}

func removeMessage(addrs ...*net.TcpAddress) *destination.Update {
	return &destination.Update{Update: &destination.Update_Remove{Remove: &destination.AddrSet{Addrs: addrs}}}
}

func noEndpoints(exists bool) *destination.Update {
	return &destination.Update{Update: &destination.Update_NoEndpoints{
		NoEndpoints: &destination.NoEndpoints{Exists: exists},
	}}
}

func TestUpdate(t *testing.T) {
	one, two := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("[fd00::2]:80")
	at := func(addrs ...netip.AddrPort) (list []resolve.Endpoint) {
		for _, a := range addrs {
			list = append(list, resolve.Endpoint{ID: resolve.ID{Addr: a}})
		}
		return list
	}
	for name, tt := range map[string]struct {
		in   *destination.Update
		want resolve.Update // the zero Update: the message has no effect
	}{
		"add":                       {addMessage(tcp(two), tcp(one)), resolve.Update{Kind: resolve.Add, Endpoints: at(two, one)}},
		"add, one cannot be read":   {addMessage(nowhere, tcp(one), nil), resolve.Update{Kind: resolve.Add, Endpoints: at(one)}},
		"add, none can be read":     {addMessage(nowhere), resolve.Update{}},
		"add of nothing":            {addMessage(), resolve.Update{}},
		"add without set":           {&destination.Update{Update: &destination.Update_Add{}}, resolve.Update{}},
		"remove":                    {removeMessage(tcp(two), tcp(one)), resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{two, one}}},
		"remove, one can't be read": {removeMessage(nowhere, tcp(one)), resolve.Update{Kind: resolve.Remove, Removed: []netip.AddrPort{one}}},
		"remove, none can be read":  {removeMessage(nowhere, nil), resolve.Update{}},
		"remove without set":        {&destination.Update{Update: &destination.Update_Remove{}}, resolve.Update{}},
		"no endpoints":              {noEndpoints(true), resolve.Update{Kind: resolve.Empty}},
		"does not exist":            {noEndpoints(false), resolve.Update{Kind: resolve.DoesNotExist}},
		"empty oneof":               {&destination.Update{}, resolve.Update{}},
		"nil":                       {nil, resolve.Update{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := update(tt.in, ignore)
			assert.Equal(t, tt.want.Kind != 0, ok)
			if ok {
				assert.Equal(t, tt.want, got)
			}
		})
	}
}

func TestUpdateSetLabels(t *testing.T) {
	m := addMessage(tcp(netip.MustParseAddrPort("10.0.0.1:80")), tcp(netip.MustParseAddrPort("10.0.0.2:80")))
	m.GetAdd().MetricLabels = map[string]string{"service": "web", "pod": "?"}
	m.GetAdd().Addrs[1].MetricLabels = map[string]string{"pod": "b"}
	got, ok := update(m, ignore)
	require.True(t, ok)
	assert.Equal(t, map[string]string{"service": "web", "pod": "?"}, got.Endpoints[0].Labels)
	assert.Equal(t, map[string]string{"service": "web", "pod": "b"}, got.Endpoints[1].Labels)
}

// The Locality is the label "zone", as linkerd's controller sends it.
func TestUpdateLocality(t *testing.T) {
	m := addMessage(tcp(netip.MustParseAddrPort("10.0.0.1:80")), tcp(netip.MustParseAddrPort("10.0.0.2:80")))
	got, ok := update(m, ignore)
	require.True(t, ok)
	assert.Empty(t, got.Endpoints[0].Locality)
	m.GetAdd().MetricLabels = map[string]string{"zone": "a"}
	m.GetAdd().Addrs[1].MetricLabels = map[string]string{"zone": "b", "zone_locality": "remote"}
	got, ok = update(m, ignore)
	require.True(t, ok)
	assert.Equal(t, "a", got.Endpoints[0].Locality)
	assert.Equal(t, "b", got.Endpoints[1].Locality)
	for _, e := range got.Endpoints {
		assert.Zero(t, e.Priority)
		assert.Zero(t, e.LocalityWeight)
	}
}

func FuzzUpdate(f *testing.F) {
	for _, m := range []*destination.Update{
		{}, noEndpoints(true), noEndpoints(false), addMessage(nowhere), removeMessage(nowhere),
		addMessage(tcp(netip.MustParseAddrPort("10.0.0.1:80"))), removeMessage(tcp(netip.MustParseAddrPort("[::1]:80"))),
	} {
		data, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &destination.Update{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		u, ok := update(m, ignore)
		if !ok {
			return
		}
		switch u.Kind {
		case resolve.Add:
			require.NotEmpty(t, u.Endpoints)
			require.LessOrEqual(t, len(u.Endpoints), len(m.GetAdd().GetAddrs()))
		case resolve.Remove:
			require.NotEmpty(t, u.Removed)
			require.LessOrEqual(t, len(u.Removed), len(m.GetRemove().GetAddrs()))
		case resolve.Empty, resolve.DoesNotExist:
			require.Equal(t, u.Kind == resolve.Empty, m.GetNoEndpoints().GetExists())
		default:
			t.Fatalf("no message becomes a %v", u.Kind)
		}
		var set resolve.Set
		set.Apply(u)
		require.False(t, set.Apply(u).HasChanges())
	})
}

func BenchmarkUpdateOfTenThousand(b *testing.B) {
	m := addMessage()
	m.GetAdd().MetricLabels = map[string]string{"namespace": "ns", "service": "web"}
	for i := range 10_000 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		m.GetAdd().Addrs = append(m.GetAdd().Addrs, &destination.WeightedAddr{
			Addr: tcp(addr), Weight: 10_000, MetricLabels: map[string]string{"pod": addr.String()}, TlsIdentity: dnsIdentity("web.ns"),
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		if u, ok := update(m, ignore); !ok || len(u.Endpoints) != 10_000 {
			b.Fatal("not read")
		}
	}
}
