package sidecar_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

var silent = slog.New(slog.DiscardHandler)

// Direct inbound connections are rejected without an identity.
func TestDirectConnectionWithoutIdentity(t *testing.T) {
	tn := newTestProxy(t, "127.0.0.1:1")
	for range 2 {
		conn, err := net.Dial("tcp", tn.Inbound)
		if err != nil {
			continue // the reset was faster
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
}

// Shutdown before Run is not forgotten.
func TestShutdownBeforeRun(t *testing.T) {
	p, err := sidecar.New(sidecar.Config{Settings: settingsFor(t, "127.0.0.1:1")}, silent)
	require.NoError(t, err)
	p.Shutdown()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { ended <- p.Run(ctx) }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(soon):
		cancel()
		<-ended
		t.Fatal("it runs")
	}
}

// If ctx ended before the proxy serves, Run returns immediately.
func TestRunWithoutGrace(t *testing.T) {
	c := sidecar.Config{Settings: settingsFor(t, "127.0.0.1:1")}
	anyPort := netip.MustParseAddrPort(ownHost)
	c.Outbound.Listen, c.Settings.Inbound.Listen = []netip.AddrPort{anyPort}, anyPort
	c.Settings.Admin.Listen, c.Settings.Tap.Listen = anyPort, anyPort
	p, err := sidecar.New(c, silent)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, p.Run(ctx))
	for _, addr := range []string{p.Addr, p.Inbound, p.Admin, p.Tap} {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err, "it is let go")
		require.NoError(t, l.Close())
	}
}

// A proxy that could not be made releases its addresses.
func TestNewReleasesListenersOnError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	free, err := net.Listen("tcp", ownHost)
	require.NoError(t, err)
	addr := netip.MustParseAddrPort(free.Addr().String())
	for name, change := range map[string]func(*sidecar.Config){
		"inbound": func(c *sidecar.Config) {
			c.Outbound.Listen = []netip.AddrPort{addr}
			c.Settings.Inbound.Listen = netip.MustParseAddrPort(taken.Addr().String())
		},
		"second outbound": func(c *sidecar.Config) {
			c.Outbound.Listen = []netip.AddrPort{addr, netip.MustParseAddrPort(taken.Addr().String())}
		},
		"tap": func(c *sidecar.Config) {
			c.Settings.Admin.Listen = addr
			c.Settings.Tap.Listen = netip.MustParseAddrPort(taken.Addr().String())
		},
	} {
		require.NoError(t, free.Close())
		c := sidecar.Config{Settings: settingsFor(t, "127.0.0.1:1")}
		change(&c)
		_, err = sidecar.New(c, silent)
		require.ErrorContains(t, err, "in use", name)
		free, err = net.Listen("tcp", addr.String())
		require.NoError(t, err, name)
	}
	require.NoError(t, free.Close())
}

// The grace period is shared by the whole proxy. The time that connections took is not available to
// the operators' servers. Closing connections at the end is not an error, as in linkerd's proxy.
func TestGraceShared(t *testing.T) {
	t.Parallel()
	const grace = 300 * time.Millisecond
	held := make(chan struct{})
	app, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer app.Close()
	go func() {
		conn, err := app.Accept()
		if err == nil {
			close(held)
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	p, stop, ended := run(t, "127.0.0.1:1", func(c *sidecar.Config) {
		c.Shutdown.Grace = grace
		c.Outbound.Origin = fixed(app.Addr().String())
	})
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "\x00\x01\x02\x03 something that is no HTTP at all")
	require.NoError(t, err)
	<-held
	operator, err := net.Dial("tcp", p.Admin) // a request that never comes to its end
	require.NoError(t, err)
	defer operator.Close()
	_, err = io.WriteString(operator, "GET /live HTTP/1.1\r\nHost: "+p.Admin+"\r\n\r\n")
	require.NoError(t, err)
	_, err = operator.Read(make([]byte, 1))
	require.NoError(t, err)
	_, err = io.WriteString(operator, "PUT /proxy-log-level HTTP/1.1\r\nHost: "+p.Admin+"\r\nContent-Length: 100\r\n\r\n")
	require.NoError(t, err)

	began := time.Now()
	stop()
	require.NoError(t, <-ended)
	took := time.Since(began)
	require.GreaterOrEqual(t, took, grace)
	t.Logf("it ended after %v", took)
}
