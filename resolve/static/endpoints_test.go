package static

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEndpoints(t *testing.T) {
	got, err := Endpoints("10.0.0.1:80", "[fd00::1]:8080", "[fe80::1%eth0]:1", "[::ffff:127.0.0.1]:65535")
	require.NoError(t, err)
	var addrs []string
	for _, e := range got {
		addrs = append(addrs, e.Addr.String())
		e.Addr = got[0].Addr
		assert.Equal(t, got[0], e, "only the address is set")
	}
	assert.Equal(t, []string{"10.0.0.1:80", "[fd00::1]:8080", "[fe80::1%eth0]:1", "127.0.0.1:65535"}, addrs)

	got, err = Endpoints()
	require.NoError(t, err)
	assert.Empty(t, got)
}

func TestEndpointsErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                "not an IP address with a port",
		"10.0.0.1":        "no port: write 10.0.0.1:80",
		"fd00::1":         "no port: write 10.0.0.1:80 or [fd00::1]:80",
		"10.0.0.1:":       "not an IP address with a port",
		"10.0.0.1:0":      "port 0 cannot be connected to",
		"0.0.0.0:80":      "the unspecified address is for listening: write the address to connect to",
		"[::]:80":         "the unspecified address is for listening",
		"[::%lo]:80":      "the unspecified address is for listening",
		"[::ffff:0:0]:80": "the unspecified address is for listening",
		"10.0.0.1:65536":  "not an IP address with a port",
		"10.0.0.1:http":   "not an IP address with a port",
		"web.default:80":  "not an IP address with a port",
		"10.0.0.1:80 ":    "not an IP address with a port",
		"http://[::1]:80": "not an IP address with a port",
	} {
		got, err := Endpoints("10.0.0.9:80", in)
		require.ErrorContains(t, err, want, "%q", in)
		require.ErrorContains(t, err, `static: address "`+in+`"`)
		assert.Nil(t, got)
	}

	_, err := Endpoints("a", "10.0.0.1:80", "b")
	require.ErrorContains(t, err, `"a"`)
	require.ErrorContains(t, err, `"b"`)
}

func FuzzEndpoints(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", "[::1]:80", "[fe80::1%lo]:9", "x", "1.2.3.4:0", ":80", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Endpoints(s)
		if err != nil {
			require.Nil(t, got)
			return
		}
		require.Len(t, got, 1)
		require.True(t, got[0].Addr.IsValid())
		require.NotZero(t, got[0].Addr.Port())
		require.False(t, got[0].Addr.Addr().IsUnspecified())
		again, err := Endpoints(got[0].Addr.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
