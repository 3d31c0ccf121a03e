package kit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := map[string][]netip.Addr{
			"web": {netip.MustParseAddr("::ffff:10.0.0.1"), netip.IPv6Unspecified(), netip.MustParseAddr("fd00::1")}, "none": {},
			"blocked": {netip.IPv4Unspecified()},
		}
		reg := newRegistry()
		reg.say("web", sd.Event{Instances: []string{"web:80", "10.0.0.9:80"}})
		r := New(reg.make, WithLookup(func(_ context.Context, host string) ([]netip.Addr, error) {
			if ips, ok := table[host]; ok {
				return ips, nil
			}
			return nil, errors.New("SERVFAIL")
		}))
		ctx, cancel := context.WithCancel(t.Context())
		got := follow(ctx, r, "web")
		synctest.Wait()
		delete(table, "web")
		reg.say("web", sd.Event{Instances: []string{"web:80", "none:80", "blocked:80"}})
		synctest.Wait()
		cancel()
		synctest.Wait()
		assert.Equal(t, []string{
			"replace 10.0.0.9:80 10.0.0.1:80 [fd00::1]:80",
			`kit: "web": instance "blocked:80": the unspecified address is for listening: register the address to connect to`,
			`kit: "web": instance "none:80": look up: none has no address`,
			`kit: "web": instance "web:80": look up: SERVFAIL`,
			"replace 10.0.0.1:80 [fd00::1]:80", "end",
		}, *got, "what is known of a name stays when it cannot be looked up")
	})
}

func TestParse(t *testing.T) {
	r := New(func(string) (sd.Instancer, error) {
		return sd.FixedInstancer{"10.0.0.1:80 7", "bad", "no port", "nowhere"}, nil
	},
		WithParse(func(s string) (e resolve.Endpoint, err error) {
			switch s {
			case "bad":
				return e, errors.New("is bad")
			case "no port":
				return e, nil
			case "nowhere":
				e.Addr = netip.MustParseAddrPort("[::]:80")
				return e, nil
			}
			_, err = fmt.Sscanf(s, "10.0.0.1:80 %d", &e.Weight)
			e.Addr = netip.MustParseAddrPort("10.0.0.1:80")
			return e, err
		}))
	next, stop := iter.Pull2(r.Resolve(t.Context(), "web"))
	defer stop()
	_, err, _ := next()
	require.EqualError(t, err, `kit: "web": instance "bad": is bad`)
	_, err, _ = next()
	require.ErrorContains(t, err, `instance "no port": parsed as invalid AddrPort, which cannot be connected to`)
	_, err, _ = next()
	require.ErrorContains(t, err, `instance "nowhere": parsed as [::]:80: the unspecified address is for listening`)
	u, err, _ := next()
	require.NoError(t, err)
	require.Len(t, u.Endpoints, 1)
	assert.Equal(t, uint32(7), u.Endpoints[0].Weight)
}

// An instance that stays unreadable is an error once, and again when it was
// readable or gone meanwhile.
func TestAnUnreadableInstanceIsSaidOnce(t *testing.T) {
	var r reader
	errs := func(instances ...string) (n int) {
		for _, item := range r.event(t.Context(), sd.Event{Instances: instances}) {
			if item.err != nil {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 1, errs("10.0.0.1:80", "bad"))
	assert.Zero(t, errs("10.0.0.2:80", "bad"))
	assert.Zero(t, errs("bad"), "and nothing is lost by it")
	assert.Equal(t, 1, errs("10.0.0.2:80", "bad", "worse"))
	assert.Empty(t, r.event(t.Context(), sd.Event{Instances: []string{"bad", "worse"}}))
	assert.Zero(t, errs("10.0.0.2:80"))
	assert.Equal(t, 1, errs("10.0.0.2:80", "bad"))
}

func FuzzInstance(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", "[fd00::1]:80", "0.0.0.0:80", "[::%lo]:80", "web:80", ":80", "web:0", "[::1%lo]:1", "a:b:1", "web:http"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := reader{}
		got, err := r.instance(t.Context(), s)
		if err != nil {
			require.Empty(t, got)
			return
		}
		require.Len(t, got, 1)
		require.True(t, got[0].Addr.IsValid())
		require.NotZero(t, got[0].Addr.Port())
		require.False(t, got[0].Addr.Addr().IsUnspecified())
		again, err := r.instance(t.Context(), got[0].Addr.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
