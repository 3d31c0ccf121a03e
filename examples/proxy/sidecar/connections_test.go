package sidecar_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Requests to a service with many endpoints, each with an identity, make few connections. Discovery
// reports HTTP/2 for each endpoint, so HTTP/1 requests arrive over HTTP/2, with their Host and with
// l5d-orig-proto.
func TestConnectionReuse(t *testing.T) {
	t.Parallel()
	const endpoints = 200
	for name, two := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		t.Run(name, func(t *testing.T) {
			var accepted atomic.Int64
			m := meshOf(t, "")
			m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
			proxy := tcplayer.DetectTLS(m.of(t, serverName).Server(), tcplayer.MatchServerName(serverName),
				tcplayer.TLSServers{Terminate: httplayer.NewServer(httplayer.FromHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					assert.Equal(t, 2, r.ProtoMajor)
					assert.Equal(t, "web.example", r.Host)
					var original []string // of a request that was in HTTP/1
					if !two {
						original = []string{"HTTP/1.1"}
					}
					assert.Equal(t, original, r.Header.Values("L5d-Orig-Proto"))
					w.WriteHeader(http.StatusOK)
				})))})
			var hinted []*destination.WeightedAddr
			for range endpoints {
				hinted = append(hinted, endpointAt(conntest.Serve(t, func(_ int, conn net.Conn) {
					accepted.Add(1)
					_, _ = proxy.Call(t.Context(), conn)
				}), proves(serverName), speaksH2))
			}
			m.answer(t, hinted...)
			c := m.a.client(t)
			if two {
				c = h2Client(t, m.a.Addr)
			}
			for range 2 {
				status, _ := get(t, c, "http://web.example/")
				require.Equal(t, http.StatusOK, status)
				time.Sleep(200 * time.Millisecond) // for connections that may be on their way
			}
			require.LessOrEqual(t, accepted.Load(), int64(5), "of 200 endpoints")
		})
	}
}

// One hundred concurrent HTTP/1 requests share few connections between two proxies, in transparent
// mode and with transport headers. The connection with the header counts as HTTP/2.
func TestHTTP1SharesConnections(t *testing.T) {
	t.Parallel()
	const requests = 100
	for name, withHeader := range map[string]bool{"transparent": false, "transport header": true} {
		t.Run(name, func(t *testing.T) {
			var together sync.WaitGroup
			together.Add(requests)
			app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "HTTP/1.1 web.example", r.Proto+" "+r.Host)
				together.Done()
				together.Wait()
			}))
			defer app.Close()
			addr := app.Listener.Addr().String()
			origin := addr
			if withHeader {
				origin = "" // the connections are not redirected
			}
			m := meshOf(t, origin)
			m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
			e := endpointAt(m.b.Inbound, proves(serverName), speaksH2)
			if withHeader {
				e = endpointAt(addr, proves(serverName), speaksH2, direct(m.b.Inbound))
			}
			m.answer(t, e)
			var all errgroup.Group
			for range requests {
				c := m.a.client(t)
				all.Go(func() error {
					rsp, err := c.Get("http://web.example/")
					if err != nil {
						return err
					}
					defer rsp.Body.Close()
					if rsp.StatusCode != http.StatusOK {
						return errors.New(rsp.Status)
					}
					return nil
				})
			}
			require.NoError(t, all.Wait())
			m.b.metrics(t, func(t require.TestingT, text string) {
				opened, ok := valueOf(text, "tcp_open_total", `direction="inbound"`, `peer="src"`, `tls="true"`)
				require.True(t, ok)
				require.LessOrEqual(t, opened, 3.0)
			})
			if withHeader {
				m.b.metrics(t, func(t require.TestingT, text string) {
					port := strconv.Itoa(int(netip.MustParseAddrPort(addr).Port()))
					headers, ok := valueOf(text, "inbound_tcp_transport_header_connections_total",
						`client_id="`+clientName+`"`, `session_protocol="http/2"`, `target_port="`+port+`"`)
					require.True(t, ok)
					require.LessOrEqual(t, headers, 3.0)
					require.NotContains(t, text, `session_protocol="http/1"`)
				})
			}
		})
	}
}
