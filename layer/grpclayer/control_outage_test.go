package grpclayer

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// freeAddr is an unused address of a loopback host that no other test uses.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.77:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Calls and streams wait during an outage of the control plane.
func TestControlUnreachableAtStart(t *testing.T) {
	addr := freeAddr(t)
	c := control(t, ControlPlaneConfig{Addr: addr})
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			_, err := call(t.Context(), c)
			assert.NoError(t, err)
		})
		callers.Go(func() {
			s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
			if assert.NoError(t, err) && assert.NoError(t, s.CloseSend()) {
				_, err = s.Recv()
				assert.ErrorIs(t, err, io.EOF)
			}
		})
	}
	eventually(t, func() bool { return waiting(c) == 40 && failures(c) > 2 }, "they wait")
	servePlane(t, addr, nil)
	callers.Wait()
}

func failures(c *ControlPlaneConn) int64 {
	n, _ := nodeOf(c.Describe(), "reconnect")
	failed, _ := n.State.Get("failed").(int64)
	return failed
}

// A graceful restart of the server fails no call.
func TestControlRestarts(t *testing.T) {
	addr := freeAddr(t)
	p := servePlane(t, addr, nil)
	c := control(t, ControlPlaneConfig{Addr: addr})
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := call(t.Context(), c); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	for range 10 {
		before := p.calls.Load()
		eventually(t, func() bool { return p.calls.Load() > before+20 }, "it serves")
		p.grpc.GracefulStop()
		p.stop()
		p = servePlane(t, addr, nil)
	}
	close(stop)
	callers.Wait()
}

// A stream ends with its server at once. Another stream waits for the next
// server.
func TestControlStreamsAfterCrash(t *testing.T) {
	addr := freeAddr(t)
	p := servePlane(t, addr, nil)
	c := control(t, ControlPlaneConfig{Addr: addr})
	for range 5 {
		s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Send(new(pb.StreamingOutputCallRequest)))
		_, err = s.Recv()
		require.NoError(t, err)
		p.stop()
		_, err = s.Recv()
		require.Equal(t, codes.Unavailable, status.Code(err), err)
		require.NotErrorIs(t, err, layer.ErrNotReady, "it was sent")

		next := make(chan error, 1)
		go func() {
			_, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
			next <- err
		}()
		eventually(t, func() bool { return waiting(c) == 1 }, "it waits")
		p = servePlane(t, addr, nil)
		require.NoError(t, <-next)
	}
}

// Controllers close connections with GOAWAY, and open streams continue.
func TestControlGoAway(t *testing.T) {
	z := serveZone(t, "127.0.0.77")
	addr := freeAddr(t)
	p := servePlane(t, addr, nil)
	c := control(t, ControlPlaneConfig{Addr: "dst.test:" + portOf(t, addr), Resolver: z.resolver()})
	old, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	echo := func() {
		require.NoError(t, old.Send(new(pb.StreamingOutputCallRequest)))
		_, err := old.Recv()
		require.NoError(t, err)
	}
	echo()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.grpc.GracefulStop() // no longer listens, and waits for the stream
	}()
	eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, "it no longer listens")
	other := servePlane(t, addr, nil)
	for range 20 {
		_, err := call(t.Context(), c)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 20, other.calls.Load()+p.calls.Load()-1)
	eventually(t, func() bool {
		_, err := call(t.Context(), c)
		return err == nil && other.calls.Load() > 0
	}, "calls go to the new one")
	echo()
	require.NoError(t, old.CloseSend())
	_, err = old.Recv()
	require.ErrorIs(t, err, io.EOF)
	<-stopped
}

// New calls use the new addresses in DNS, and streams stay.
func TestControlDNSChange(t *testing.T) {
	l1, l2 := listenAlike(t, "127.0.0.78", "127.0.0.79")
	one, two := servePlaneOn(t, l1, nil), servePlaneOn(t, l2, nil)
	port := portOf(t, one.addr)
	z := serveZone(t, "127.0.0.78")
	c := control(t, ControlPlaneConfig{Addr: "dst.test:" + port, Resolver: z.resolver()})
	s, err := pb.NewTestServiceClient(c).FullDuplexCall(t.Context())
	require.NoError(t, err)
	echo := func() {
		require.NoError(t, s.Send(new(pb.StreamingOutputCallRequest)))
		_, err = s.Recv()
		require.NoError(t, err)
	}
	echo()
	z.set("127.0.0.79")
	eventually(t, func() bool {
		who, err := call(t.Context(), c)
		require.NoError(t, err, "no call is lost")
		return who == two.addr
	}, "it follows")
	for range 50 {
		who, err := call(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, two.addr, who)
	}
	echo()
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	eventually(t, func() bool {
		c.links.mu.Lock()
		defer c.links.mu.Unlock()
		return len(c.links.open) == 1
	}, "then its connection is closed")
}

// Addresses remain while DNS fails, and for a time after an empty response.
func TestControlDNSOutage(t *testing.T) {
	p := servePlane(t, "127.0.0.80:0", nil)
	z := serveZone(t, "127.0.0.80")
	c := control(t, ControlPlaneConfig{Addr: "dst.test:" + portOf(t, p.addr), Resolver: z.resolver()})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
	z.fail(dnsmessage.RCodeServerFailure, dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV)
	failing := z.count(dnsmessage.TypeA)
	eventually(t, func() bool { return z.count(dnsmessage.TypeA) > failing+3 }, "it asks")
	_, err = call(t.Context(), c)
	require.NoError(t, err)
	z.set()
	z.fail(dnsmessage.RCodeSuccess)
	well := z.count(dnsmessage.TypeA)
	eventually(t, func() bool { return z.count(dnsmessage.TypeA) > well+1 }, "it asks")
	_, err = call(t.Context(), c)
	require.NoError(t, err)
}

// One of several addresses refuses connections, and another one does not respond.
func TestControlDeadAddresses(t *testing.T) {
	t.Parallel()
	l, silent := listenAlike(t, "127.0.0.81", "127.0.0.82")
	defer silent.Close()
	good := servePlaneOn(t, l, nil)
	port := portOf(t, good.addr)
	z := serveZone(t, "127.0.0.81", "127.0.0.82", "127.0.0.83")
	c := control(t, ControlPlaneConfig{
		Addr: "dst.test:" + port, Resolver: z.resolver(), ConnectTimeout: 200 * time.Millisecond,
		Backoff: layer.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond},
	})
	for range 500 {
		who, err := call(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, good.addr, who)
	}
	eventually(t, func() bool { return slices.Contains(reasons(c.Describe()), "not connected within 200ms") }, "and it says why")
}

// reasons are the last errors of all addresses, without the addresses.
func reasons(n layer.Node) []string {
	var all []string
	for at := &n; at != nil; at = at.Next {
		if text, ok := at.State.Get("last_error").(string); ok {
			all = append(all, text[max(0, len(text)-len("not connected within 200ms")):])
		}
		for _, child := range at.Children {
			all = append(all, reasons(child)...)
		}
	}
	return all
}

// A call that waits too long fails with the reason. Later calls fail at once.
func TestControlFailFast(t *testing.T) {
	addr := freeAddr(t)
	c := control(t, ControlPlaneConfig{Addr: addr, FailFast: 100 * time.Millisecond})
	// Later calls get the reason of the fail-fast.
	eventually(t, func() bool { return failures(c) > 0 }, "it tried")
	_, err := call(t.Context(), c)
	require.ErrorIs(t, err, layer.ErrFailFast)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.ErrorContains(t, err, addr)
	_, err = call(t.Context(), c, waitForReady)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "connection refused")
	servePlane(t, addr, nil)
	eventually(t, func() bool {
		_, err := call(t.Context(), c)
		return err == nil
	}, "it is open again")
}

// The queue is bounded.
func TestControlQueueCapacity(t *testing.T) {
	addr := freeAddr(t)
	c := control(t, ControlPlaneConfig{Addr: addr, QueueCapacity: 3, FailFast: -1})
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			_, err := call(t.Context(), c)
			assert.NoError(t, err)
		})
	}
	eventually(t, func() bool { return waiting(c) == 3 }, "they wait")
	_, err := call(t.Context(), c)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.Equal(t, codes.Unavailable, status.Code(err))
	servePlane(t, addr, nil)
	callers.Wait()
}
