package httpclient_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/httpclient"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// silent returns an address of IPv6 to which an attempt to connect has no answer: its listener has a full queue, so that
// the system drops further ones.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}); err != nil {
		t.Skip("no IPv6: ", err)
	}
	require.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	addr := netip.AddrPortFrom(netip.IPv6Loopback(), uint16(name.(*syscall.SockaddrInet6).Port))
	for lost := 0; lost < 3; { // several attempts have had no answer, so that the queue is full
		conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(t.Context(), "tcp", addr.String())
		if lost++; err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			lost = 0
		}
	}
	return addr
}

// A host whose addresses of one IP family lead nowhere is reached by the other family, although an attempt to connect
// may take long.
func TestUnreachableFamily(t *testing.T) {
	dead, live := silent(t), netip.MustParseAddrPort(server(t, "four", 0))
	table := static.New(map[string][]resolve.Endpoint{"web": {{ID: resolve.ID{Addr: dead}}, {ID: resolve.ID{Addr: live}}}})
	var yielded atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for yielded.Load() == 0 { // the balancer begins with either of them
		c := client(t, httpclient.New(ctx, "web", httpclient.WithResolver(table), httpclient.WithTimeout(0),
			httpclient.WithEndpointOptions(httplayer.WithConnectTimeout(time.Hour)),
			httpclient.WithEvents(func(e httpclient.Event) {
				if e.Kind == httpclient.EndpointDown && strings.Contains(e.Err.Error(), "the other IP family") {
					yielded.Add(1)
				}
			})))
		for range 3 {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://web/", http.NoBody)
			require.NoError(t, err)
			rsp, err := c.Do(req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
	}
}
