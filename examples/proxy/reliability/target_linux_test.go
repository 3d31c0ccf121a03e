package reliability

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// The memory of a target in use: one endpoint with a connection, a profile and metrics.
func TestTargets(t *testing.T) {
	whole(t)
	if !full {
		t.Skip("the memory of few targets is not exact")
	}
	const n = 1000
	up := newUpstream(t, nil)
	pl := newPlane(t, up.addr)
	name := func(i int) string { return fmt.Sprintf("web-%d.default.svc.cluster.local:80", i) }
	for i := range n + 10 {
		maps.Copy(pl.cfg.Destinations, served(name(i), controller.Unknown, up.addr).Destinations)
	}
	require.NoError(t, pl.Set(pl.cfg))
	p := startProxy(t, pl.addr, "LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT=10m")
	conn, err := net.Dial("tcp", p.addr)
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	request := func(i int) {
		_, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name(i))
		require.NoError(t, err)
		rsp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, rsp.StatusCode)
	}
	for i := range 10 {
		request(i)
	}
	before := p.steady(t)
	for i := range n {
		request(10 + i)
	}
	now := p.steady(t)
	each := (now.heap - before.heap) * 1024 / float64(n)
	t.Logf("%d targets in use: %.1f KiB and %.1f goroutines each", n, each, float64(now.goroutines-before.goroutines)/float64(n))
	assert.LessOrEqual(t, each, 100.0)

	text, err := p.ask("/metrics")
	require.NoError(t, err)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err = io.WriteString(zip, text)
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	t.Logf("/metrics: %d bytes a target, %d with gzip", len(text)/n, packed.Len()/n)
	assert.LessOrEqual(t, len(text)/n, 4_000)
	assert.LessOrEqual(t, packed.Len()/n, 500)
}
