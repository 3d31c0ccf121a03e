package httplayer

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A refusal says when there may be a connection, and a client is told so.
func TestEndpointSaysWhenItTriesAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for _, major := range []int{1, 2} {
		e := endpoint(t, l.Addr().String(), Backoff(layer.Backoff{Min: 3 * time.Second, Max: 3 * time.Second}))
		req := request(t, http.MethodGet, "http://web/", "")
		req.ProtoMajor = major
		for range 2 { // what found it out, and what is refused because of that
			_, err = e.Call(t.Context(), req)
			after, ok := layer.RetryAfter(err)
			require.True(t, ok, "%v", err)
			assert.Greater(t, after, 2*time.Second)
			assert.LessOrEqual(t, after, 3*time.Second)
		}
		rsp, err := client(t, false).Get("http://" + serve(t, Handler(e)) + "/")
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		assert.Equal(t, "3", rsp.Header.Get("Retry-After"))
	}
}
