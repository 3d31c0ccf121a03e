package controller

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTarget(t *testing.T) {
	for _, c := range []struct {
		in, want string
		ip       bool
	}{
		{"web.test:8080", "web.test:8080", false},
		{"web.test", "web.test:80", false},
		{"Web.Test.:81", "web.test:81", false},
		{"_grpc._tcp.x-y.test", "_grpc._tcp.x-y.test:80", false},
		{"localhost:65535", "localhost:65535", false},
		{"10.0.0.1:8080", "10.0.0.1:8080", true},
		{"10.0.0.1", "10.0.0.1:80", true},
		{"[::1]:8080", "[::1]:8080", true},
		{"::1", "[::1]:80", true},
		{"[::ffff:10.0.0.1]:80", "10.0.0.1:80", true},
	} {
		got, err := parseTarget(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got.String(), c.in)
		require.Equal(t, c.ip, got.ip, c.in)
	}
	for _, in := range []string{
		"", ":80", ".", "..", "a..b", ".a", "a:", "a:0", "a:65536", "a:-1", "a:+1", "a:80:80", "a b", "a/b:80", "ü.test",
		"-a", "a-.test", "1.2.3.400", "10:80", "[::1]", "[::1]:0", "fe80::1%eth0", "[fe80::1%eth0]:80", "10.0.0.1:0",
		strings.Repeat("a", 64), strings.Repeat("a.", 127) + "a",
	} {
		_, err := parseTarget(in)
		require.Error(t, err, "%q", in)
	}
}

// A target's own spelling is a target, and the same one.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"web.test:80", "[::1]:80", "1.2.3.4", "WEB.", "a:0", "::ffff:1.2.3.4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, err := parseTarget(s)
		if err != nil {
			return
		}
		second, err := parseTarget(first.String())
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.NotZero(t, first.port)
		require.NotEmpty(t, first.host)
	})
}
