package sidecar_test

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Requests to a service with many endpoints, each with an identity, make few connections. A
// request arrives in its own HTTP version and with its Host, although discovery reports
// HTTP/2 for each endpoint.
func TestConnectionReuse(t *testing.T) {
	t.Parallel()
	const endpoints = 200
	for name, two := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			var accepted, major atomic.Int64
			m := meshOf(t, "")
			m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
			proxy := tcplayer.DetectTLS(m.of(t, serverName).Server(), tcplayer.MatchServerName(serverName),
				tcplayer.TLSServers{Terminate: httplayer.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					major.Store(int64(r.ProtoMajor))
					assert.Equal(t, "web.example", r.Host)
					assert.Empty(t, r.Header.Values("L5d-Orig-Proto"))
					w.WriteHeader(http.StatusOK)
				}))})
			var hinted []*destination.WeightedAddr
			for range endpoints {
				hinted = append(hinted, endpointAt(conntest.Serve(t, func(_ int, conn net.Conn) {
					accepted.Add(1)
					_, _ = proxy.Call(t.Context(), conn)
				}), proves(serverName), speaksH2))
			}
			m.answer(t, hinted...)
			c, want := m.a.client(t), int64(1)
			if two {
				c, want = h2Client(t, m.a.Addr), 2
			}
			for range 2 {
				status, _ := get(t, c, "http://web.example/")
				require.Equal(t, http.StatusOK, status)
				require.Equal(t, want, major.Load())
				time.Sleep(200 * time.Millisecond) // for connections that would be on their way
			}
			require.LessOrEqual(t, accepted.Load(), int64(5), "of 200 endpoints")
		})
	}
}
