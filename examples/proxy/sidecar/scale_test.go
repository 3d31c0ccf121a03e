package sidecar_test

import (
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
)

// An unused endpoint costs less than 8 KiB.
func TestScaleOfKnownEndpoints(t *testing.T) {
	const endpoints = 5000
	ctl := newScript(t)
	tn := newTestProxy(t, ctl.addr)
	app := netip.MustParseAddrPort(backend(t, "a"))
	set := &destination.WeightedAddrSet{MetricLabels: map[string]string{"service": "web"}}
	for i := range endpoints {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), app.Port())
		if i == 0 {
			addr = app
		}
		set.Addrs = append(set.Addrs, endpointAt(addr.String()))
	}
	c := tn.client(t)
	before := liveHeap()
	done := make(chan error, 1)
	go func() { // it reaches an endpoint or fails to connect
		rsp, err := c.Get("http://web.example/")
		if err == nil {
			_, err = io.Copy(io.Discard, rsp.Body)
			rsp.Body.Close()
		}
		done <- err
	}()
	q := ctl.next(t, "web.example:80")
	q.say(t, &destination.Update{Update: &destination.Update_Add{Add: set}})
	require.NoError(t, <-done)
	cost := (liveHeap() - before) / endpoints
	t.Logf("a known endpoint costs %d bytes", cost)
	require.Less(t, cost, 8<<10)
	c.Transport.(*http.Transport).CloseIdleConnections()
	runtime.KeepAlive(set)
}

// liveHeap returns the live heap's size.
func liveHeap() int {
	runtime.GC()
	runtime.GC() // empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
