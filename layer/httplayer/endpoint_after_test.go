package httplayer

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A rejection has the time of the next connection attempt, and the client receives it.
func TestEndpointRetryAfter(t *testing.T) {
	addr := refusedAddr(t)
	for _, major := range []int{1, 2} {
		e := endpoint(t, addr, WithBackoff(layer.Backoff{Min: time.Hour, Max: time.Hour}))
		req := request(t, http.MethodGet, "http://web/", "")
		req.ProtoMajor = major
		for range 2 { // the request that fails to connect, and one that is rejected because of that
			_, err := e.Call(t.Context(), req)
			after, ok := layer.RetryAfter(err)
			require.True(t, ok, "%v", err)
			assert.Greater(t, after, 59*time.Minute)
			assert.LessOrEqual(t, after, time.Hour)
		}
		rsp, err := client(t, false).Get("http://" + serve(t, Handler(e)) + "/")
		require.NoError(t, err)
		read(t, rsp)
		assert.Equal(t, http.StatusBadGateway, rsp.StatusCode)
		seconds, err := strconv.Atoi(rsp.Header.Get("Retry-After"))
		require.NoError(t, err)
		assert.Greater(t, seconds, 59*60)
		assert.LessOrEqual(t, seconds, 60*60)
	}
}
