package httplayer

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
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

// An upgraded connection is open until both directions have ended. The server may end its direction
// first, and still receives the bytes of the client.
func TestUpgradeServerEndsFirst(t *testing.T) {
	received := make(chan string, 1)
	up := conntest.Serve(t, func(_ int, conn net.Conn) {
		_, err := http.ReadRequest(bufio.NewReader(conn))
		assert.NoError(t, err)
		say(conn, switching+"bye")
		assert.NoError(t, conn.(halfCloser).CloseWrite())
		got, _ := io.ReadAll(conn)
		received <- string(got)
	})
	svc := NewStack().Limit(1).ResponseHeaderTimeout(time.Minute).Service(endpoint(t, up))
	rsp, both := upgraded(t, svc)
	got, err := io.ReadAll(both)
	require.NoError(t, err)
	assert.Equal(t, "bye", string(got))
	require.NoError(t, rsp.Request.Context().Err())
	require.Error(t, layer.Poll(svc), "one is in flight")
	say(both, "late")
	require.NoError(t, both.(halfCloser).CloseWrite())
	assert.Equal(t, "late", <-received)
	require.NoError(t, both.Close())
	require.NoError(t, layer.Poll(svc))
}
