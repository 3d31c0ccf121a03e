package dns_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve/dns"
)

// noServer is an address without a DNS server.
func noServer() dns.Option { return dns.WithServers(netip.MustParseAddrPort("127.0.0.1:1")) }

func client(ctx context.Context, r *dns.Resolver, target string) *http.Client {
	svc := httplayer.NewStack().WithTarget(target).
		Timeout(time.Minute).
		Retry(httplayer.RetryPolicy{}).
		Queue(1000, 30*time.Second).
		Service(balance.Resolve(ctx, r, balance.Config{Target: target}, func(ctx context.Context, t discover.Target) httplayer.Service {
			return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
		}, balance.WithClassifier(httplayer.Classify)))
	return &http.Client{Transport: httplayer.RoundTripper(svc)}
}

// The README's client works with a server on one of the two loopback addresses.
func TestLocalhost(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"localhost", "web.localhost"} {
		t.Run(host, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			target := net.JoinHostPort(host, port)
			c := client(ctx, dns.New(noServer()), target)
			for range 10 {
				rsp, err := c.Get("http://" + target)
				require.NoError(t, err)
				body, err := io.ReadAll(rsp.Body)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				require.Equal(t, "hello", string(body))
			}
		})
	}
}
