package endtoend

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/destination/controller"
)

// A target has thousands of dead endpoints: nothing listens at their addresses, which are all
// different ones in 127.0.0.0/8. Requests to another target through the same proxy still succeed
// without waiting for them. The proxy uses neither a goroutine nor a connection for a dead
// endpoint.
func TestDeadEndpointsDoNotStarveOtherTargets(t *testing.T) {
	n := 3000
	if os.Getenv("GOTOWER_TESTS") == "full" {
		n = 100_000
	}
	const dead = "dead.default:80"
	var d controller.Destination
	for i := range n {
		addr := netip.AddrFrom4([4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)})
		d.Endpoints = append(d.Endpoints, controller.Endpoint{Addr: netip.AddrPortFrom(addr, 1)})
	}
	alive := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(alive.Close)
	good := controller.Destination{Endpoints: []controller.Endpoint{{Addr: netip.MustParseAddrPort(alive.Listener.Addr().String())}}}

	ctl := controller.New(nil)
	config := controller.Config{Destinations: map[string]controller.Destination{dead: d, target: good}}
	require.NoError(t, ctl.Set(config))
	calls := proxyClients(t, ctl, target, dead)
	web, bad := calls[0], calls[1]
	require.Eventually(t, func() bool { return web(t.Context()) == nil }, time.Minute, time.Millisecond)
	alone := latencies(t, web)

	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	var requests atomic.Int64
	for range 8 {
		workers.Go(func() {
			for ctx.Err() == nil {
				if assert.Error(t, bad(ctx)) {
					requests.Add(1)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return requests.Load() > 0 }, time.Minute, time.Millisecond)
	beside := latencies(t, web)
	most := runtime.NumGoroutine()
	t.Logf("%d dead endpoints, %d requests to them; p50 and p99 alone %v %v, beside them %v %v; %d goroutines before, %d with them",
		n, requests.Load(), alone[len(alone)/2], alone[len(alone)*99/100], beside[len(beside)/2], beside[len(beside)*99/100], before, most)
	require.Less(t, beside[len(beside)/2], 2*time.Second) // usually milliseconds, unless the machine is busy
	require.Less(t, beside[len(beside)*99/100], 10*time.Second)
	require.Less(t, most-before, 500)

	// Change one endpoint.
	changed := slices.Clone(d.Endpoints)
	changed[0].Addr = netip.MustParseAddrPort("127.200.0.1:1")
	config.Destinations[dead] = controller.Destination{Endpoints: changed}
	require.NoError(t, ctl.Set(config))
	during := latencies(t, web)
	t.Logf("p99 during an update %v, longest %v", during[len(during)*99/100], during[len(during)-1])
	require.Less(t, during[len(during)/2], 2*time.Second)
	require.Less(t, during[len(during)*99/100], 10*time.Second)
}

// latencies returns the ascending latencies of 200 calls, which must all succeed.
func latencies(t *testing.T, call func(context.Context) error) []time.Duration {
	t.Helper()
	all := make([]time.Duration, 200)
	for i := range all {
		began := time.Now()
		require.NoError(t, call(t.Context()))
		all[i] = time.Since(began)
		time.Sleep(time.Millisecond)
	}
	slices.Sort(all)
	return all
}
