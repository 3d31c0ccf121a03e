package httplayer

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upgraded sends a request to upgrade its connection.
func upgraded(t *testing.T, svc Service) (*http.Response, io.ReadWriteCloser) {
	t.Helper()
	req := request(t, http.MethodGet, "http://web/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	rsp, err := svc.Call(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	both, ok := rsp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	return rsp, both
}

// net/http reports length 0 for a 101. It is in flight until the connection is closed, and
// its context lives as long.
func TestUpgradeConnectionEnds(t *testing.T) {
	leaf := endpoint(t, serve(t, http.HandlerFunc(switchToEcho)))
	svc := NewStack().Limit(1).ResponseHeaderTimeout(time.Minute).Service(leaf)
	rsp, both := upgraded(t, svc)
	_, err := svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.Error(t, err, "one is in flight")
	assert.NoError(t, rsp.Request.Context().Err())
	say(both, "hello")
	got := make([]byte, 5)
	_, err = io.ReadFull(both, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	require.NoError(t, both.Close())
	rsp, err = svc.Call(t.Context(), request(t, http.MethodGet, "http://web/", ""))
	require.NoError(t, err)
	read(t, rsp)
}

func TestTeeBodyUpgrade(t *testing.T) {
	rsp, _ := upgraded(t, endpoint(t, serve(t, http.HandlerFunc(switchToEcho))))
	var c teeRecorder
	both, ok := Accessor{}.TeeResponseBody(rsp, c.read).Body.(io.ReadWriteCloser)
	require.True(t, ok)
	say(both, "hello")
	require.NoError(t, both.(halfCloser).CloseWrite())
	got, err := io.ReadAll(both)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	assert.Equal(t, "hello", c.String())
	require.NoError(t, both.Close())
}
