package httplayer

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func tcpAddr(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }

func TestCutOffKnowsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cutOff
		pipe, other := net.Pipe()
		defer pipe.Close()
		defer other.Close()
		require.False(t, c.has(tcpAddr("192.0.2.1:1")))
		for _, addr := range []net.Addr{tcpAddr("192.0.2.1:1"), tcpAddr("[2001:db8::1]:1"), tcpAddr("[fe80::1%eth0]:1"), pipe.RemoteAddr()} {
			c.add(addr)
		}
		for addr, want := range map[net.Addr]bool{
			tcpAddr("192.0.2.1:2"): true, tcpAddr("[::ffff:192.0.2.1]:1"): true, tcpAddr("192.0.2.2:1"): false,
			tcpAddr("[2001:db8::2:0:0:1]:9"): true, tcpAddr("[2001:db8:0:1::1]:1"): false, tcpAddr("[fe80::2%eth1]:1"): true,
			other.RemoteAddr(): true,
		} {
			assert.Equal(t, want, c.has(addr), addr)
		}
		time.Sleep(cutOffKept)
		assert.True(t, c.has(tcpAddr("192.0.2.1:1")))
		time.Sleep(time.Nanosecond)
		assert.False(t, c.has(tcpAddr("192.0.2.1:1")))
	})
}

// However many addresses there are, no more than so many are kept, and the newest
// is among them.
func TestCutOffIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cutOff
		at := netip.MustParseAddr("10.0.0.0")
		add := func(n int) {
			for range n {
				at = at.Next()
				addr := net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 80))
				c.add(addr)
				require.LessOrEqual(t, len(c.last), cutOffMost)
				require.True(t, c.has(addr))
			}
		}
		add(3 * cutOffMost)
		require.Len(t, c.last, cutOffMost)
		time.Sleep(cutOffKept + 1)
		add(1)
		require.Len(t, c.last, 1, "those that are too old are forgotten")
	})
}

// Who was cut and comes again waits for a second, once in a connection, and is cut
// all the same: nothing is given back for the wait.
func TestWhoComesAgainWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		s := &Server{}
		g := &goodbye{conn: &accepted{Conn: server, server: s, over: make(chan struct{})}}
		g.taken.most = 100
		s.cut.add(server.RemoteAddr())
		start, resets := time.Now(), 0
		for ; !g.taken.over(); resets++ {
			g.taken.reset()
			if g.taken.hasty() {
				g.hold()
			}
		}
		assert.Equal(t, cutOffPause+2*hastyPause, time.Since(start))
		assert.InDelta(t, 100, resets, 10)
	})
}

// The wait ends with the connection.
func TestWhoLeavesDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		g := &goodbye{conn: &accepted{Conn: server, server: &Server{}, over: make(chan struct{})}}
		g.conn.server.cut.add(server.RemoteAddr())
		start := time.Now()
		time.AfterFunc(cutOffPause/2, func() { close(g.conn.over) })
		g.hold()
		assert.Equal(t, cutOffPause/2, time.Since(start))
	})
}
