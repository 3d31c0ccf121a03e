package message_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// A valid authority has only a host and a port.
func FuzzAuthorityForm(f *testing.F) {
	for _, s := range []string{"web:443", "[::1]:80", "web", "/", "http://web/", "a:b:1", "web:0", "web:+1", "me@web:80", ":80", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !message.ValidAuthority(s) {
			return
		}
		host, port, err := net.SplitHostPort(s)
		require.NoError(t, err)
		require.NotEmpty(t, host)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		require.True(t, n > 0 && n < 1<<16)
		require.NotContains(t, s, "/")
		require.NotContains(t, s, "@")
	})
}
