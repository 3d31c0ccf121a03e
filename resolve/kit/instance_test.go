package kit

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"testing"

	"github.com/go-kit/kit/sd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func TestWithParse(t *testing.T) {
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

// An instance that stays invalid is one error, and another one after it was removed.
func TestInvalidInstance(t *testing.T) {
	r := reader{options: newOptions(nil)}
	errs := func(instances ...string) (n int) {
		for _, item := range r.event(instances) {
			if item.err != nil {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 1, errs("10.0.0.1:80", "bad"))
	assert.Zero(t, errs("10.0.0.2:80", "bad"))
	assert.Zero(t, errs("bad"), "the last set stays")
	assert.Equal(t, 1, errs("10.0.0.2:80", "bad", "worse"))
	assert.Empty(t, r.event([]string{"bad", "worse"}))
	assert.Zero(t, errs("10.0.0.2:80"))
	assert.Equal(t, 1, errs("10.0.0.2:80", "bad"))
}

func FuzzInstance(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", "[fd00::1]:80", "0.0.0.0:80", "[::%lo]:80", "web:80", ":80", "web:0", "[::1%lo]:1", "a:b:1", "web:http"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := reader{options: newOptions(nil)}
		got, err := r.instance(s)
		if err != nil {
			return
		}
		require.True(t, got.Addr.IsValid())
		require.NotZero(t, got.Addr.Port())
		require.False(t, got.Addr.Addr().IsUnspecified())
		again, err := r.instance(got.Addr.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
