package sidecar_test

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// The largest value means no limit.
func TestMaxHeaderListSize(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]uint32{
		"most": math.MaxUint32, "nearly most": math.MaxUint32 - 319, "enough": 20000, "unset": 0,
	} {
		t.Run(name, func(t *testing.T) {
			proxy := headersOf(t, most)
			for version, c := range map[string]*http.Client{"HTTP/1": h1Client(t, proxy), "HTTP/2": h2Client(t, proxy)} {
				require.Equal(t, http.StatusOK, askAtLength(t, c), version)
			}
		})
	}
}

// The limit for HTTP/2 also applies to HTTP/1.
func TestMaxHeaderListSizeOfHTTP1(t *testing.T) {
	t.Parallel()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, askAtLength(t, h1Client(t, headersOf(t, 2000))))
}

// headersOf returns a proxy with this limit for headers in bytes.
func headersOf(t *testing.T, most uint32) string {
	t.Helper()
	addr := backend(t, "app")
	return newTestProxy(t, newScript(t).addr, func(c *sidecar.Config) {
		c.Outbound.Origin, c.Outbound.Server.MaxHeaderListSize = fixed(addr), most
	}).Addr
}

// askAtLength sends a request with headers of about 10 kB.
func askAtLength(t *testing.T, c *http.Client) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web.example/", http.NoBody)
	require.NoError(t, err)
	for i := range 100 {
		req.Header.Set("X-Large-"+strconv.Itoa(i), strings.Repeat("x", 80))
	}
	rsp, err := c.Do(req)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	return rsp.StatusCode
}
