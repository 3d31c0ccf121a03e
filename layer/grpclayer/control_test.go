package grpclayer

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve/dns"
)

func TestControlCallsAndStreams(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	c := control(t, ControlPlaneConfig{Addr: p.addr, UserAgent: "gotower/1"})
	for _, run := range shapes {
		require.NoError(t, run(t.Context(), pb.NewTestServiceClient(c)))
	}
	who, err := call(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, p.addr, who)
	assert.Equal(t, p.addr, p.header(":authority"))
	assert.Contains(t, p.header("user-agent"), "gotower/1 grpc-go/")

	p.code.Store(int32(codes.NotFound))
	_, err = call(t.Context(), c)
	require.Equal(t, codes.NotFound, status.Code(err), "errors of the server come through")
	require.NotErrorIs(t, err, layer.ErrNotReady)
}

func TestControlName(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	z := serveZone(t, "127.0.0.1")
	addr := "dst.test.:" + portOf(t, p.addr)
	c := control(t, ControlPlaneConfig{Addr: addr, Resolver: z.resolver()})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, addr, p.header(":authority"), "the origin, not the address")
	assert.Positive(t, z.count(dnsmessage.TypeSRV))
}

// SRV records are used first, because they have the port.
func TestControlSRV(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	z := serveZone(t, "127.0.0.1")
	z.serve(uint16(mustPort(t, p.addr)))
	c := control(t, ControlPlaneConfig{Addr: "dst.test:1", Resolver: z.resolver()})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
}

// The addresses are used if the server fails for SRV records.
func TestControlWithoutSRV(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	z := serveZone(t, "127.0.0.1")
	z.fail(dnsmessage.RCodeNotImplemented, dnsmessage.TypeSRV)
	c := control(t, ControlPlaneConfig{Addr: "dst.test:" + portOf(t, p.addr), Resolver: z.resolver()})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
}

// localhost needs no DNS, and one of its two addresses is sufficient.
func TestControlLocalhost(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	noServer := dns.New(dns.WithServers(netip.MustParseAddrPort("127.0.0.1:1")))
	for _, host := range []string{"localhost", "localhost.", "LOCALHOST", "127.0.0.1"} {
		c := control(t, ControlPlaneConfig{Addr: host + ":" + portOf(t, p.addr), Resolver: noServer})
		_, err := call(t.Context(), c)
		require.NoError(t, err, host)
	}
}

func TestControlAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"":           "empty Addr",
		"dst":        "missing port",
		"dst:":       "port must be 1 to 65535",
		"dst:http":   "port must be 1 to 65535",
		"dst:0":      "port must be 1 to 65535",
		"dst:65536":  "port must be 1 to 65535",
		":80":        "empty host",
		".:80":       "empty host",
		"fd00::1:80": "too many colons",
	} {
		_, err := NewControlPlaneConn(t.Context(), ControlPlaneConfig{Addr: addr})
		require.ErrorContains(t, err, want, addr)
	}
}

func TestControlDescribe(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	c := control(t, ControlPlaneConfig{Addr: p.addr})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
	var order []string
	n := c.Describe()
	for at := &n; at != nil; at = at.Next {
		order = append(order, at.Name)
	}
	assert.Equal(t, []string{"origin", "drain", "metrics", "queue", "balance"}, order)
	link, ok := nodeOf(n, "grpc")
	require.True(t, ok, n)
	assert.Equal(t, p.addr, link.State.Get("endpoint"))
	assert.Equal(t, "READY", link.State.Get("state"))
	reconnect, ok := nodeOf(n, "reconnect")
	require.True(t, ok)
	assert.Equal(t, "connected", reconnect.State.Get("state"))
}

// Close waits for open calls until its context ends.
func TestControlClose(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	c := control(t, ControlPlaneConfig{Addr: p.addr})
	s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(new(pb.StreamingOutputCallRequest)))
	_, err = s.Recv()
	require.NoError(t, err)

	closed := make(chan error, 1)
	go func() { closed <- c.Close(context.Background()) }()
	eventually(t, c.drain.Draining, "it begins to close")
	_, err = call(t.Context(), c)
	require.ErrorIs(t, err, layer.ErrClosed)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NoError(t, s.Send(new(pb.StreamingOutputCallRequest)), "the stream goes on")
	_, err = s.Recv()
	require.NoError(t, err)
	require.Empty(t, closed)
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-closed)

	c = control(t, ControlPlaneConfig{Addr: p.addr})
	s, err = pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, c.Close(done), "1 requests are still open")
	_, err = s.Recv()
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}

// The connection and its streams end with the context of the constructor.
func TestControlContext(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := NewControlPlaneConn(ctx, ControlPlaneConfig{Addr: p.addr, ConnectTimeout: time.Minute})
	require.NoError(t, err)
	s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	cancel()
	_, err = s.Recv()
	require.Error(t, err)
	_, err = call(t.Context(), c)
	require.ErrorIs(t, err, layer.ErrClosed)
	eventually(t, func() bool {
		c.links.mu.Lock()
		defer c.links.mu.Unlock()
		return len(c.links.open) == 0
	}, "connections are closed")
}

// A waiting call ends with its context.
func TestControlCanceledCall(t *testing.T) {
	c := control(t, ControlPlaneConfig{Addr: "missing.test:80", Resolver: serveZone(t).resolver()})
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := call(ctx, c)
		failed <- err
	}()
	eventually(t, func() bool { return waiting(c) == 1 }, "it waits")
	reason := errors.New("enough")
	cancel(reason)
	require.ErrorIs(t, <-failed, reason)
}

// gauge is a counter, a gauge and a histogram in one, without labels.
type gauge struct{ n, sum atomic.Int64 }

func (g *gauge) Add(d float64)                { g.n.Add(1); g.sum.Add(int64(d)) }
func (g *gauge) Set(float64)                  { g.n.Add(1) }
func (g *gauge) Observe(float64)              { g.n.Add(1) }
func (g *gauge) counter() metrics.Counter     { return asCounter{g} }
func (g *gauge) gauge() metrics.Gauge         { return asGauge{g} }
func (g *gauge) histogram() metrics.Histogram { return asHistogram{g} }

type asCounter struct{ *gauge }

func (c asCounter) With(...string) metrics.Counter { return c }

type asGauge struct{ *gauge }

func (c asGauge) With(...string) metrics.Gauge { return c }

type asHistogram struct{ *gauge }

func (c asHistogram) With(...string) metrics.Histogram { return c }

// Instruments of calls and of the balancer are set.
func TestControlMetrics(t *testing.T) {
	var requests, responses, latency, connects, endpoints gauge
	p := servePlane(t, "127.0.0.1:0", nil)
	c := control(t, ControlPlaneConfig{
		Addr: p.addr,
		Instruments: layer.Instruments{
			Requests: requests.counter(), Responses: responses.counter(), Latency: latency.histogram(), ConnectAttempts: connects.counter(),
		},
		Balancer: balance.Instruments{Endpoints: endpoints.gauge()},
	})
	for range 5 {
		_, err := call(t.Context(), c)
		require.NoError(t, err)
	}
	s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 6, requests.sum.Load())
	assert.EqualValues(t, 5, responses.sum.Load(), "a stream that goes on has none")
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	assert.EqualValues(t, 6, responses.sum.Load())
	assert.EqualValues(t, 6, latency.n.Load())
	assert.EqualValues(t, 1, connects.sum.Load())
	assert.Positive(t, endpoints.n.Load())
}
