package tcplayer

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ways is the kinds of connection that may be looked at: one of which the kernel
// shows the bytes, with and without addresses, and one that must be read.
func ways(t *testing.T, test func(t *testing.T, pair func() (client *net.TCPConn, accepted net.Conn))) {
	t.Helper()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"tcp":       func(c net.Conn) net.Conn { return c },
		"addressed": func(c net.Conn) net.Conn { return OverrideAddrs(c, netip.AddrPort{}, ofServer) },
		"hidden":    func(c net.Conn) net.Conn { return halves{hidden{c}} },
		"read": func(c net.Conn) net.Conn {
			return OverrideAddrs(halves{hidden{c}}, netip.AddrPort{}, ofServer)
		},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, func() (*net.TCPConn, net.Conn) {
				client, accepted := tcpPair(t)
				require.NoError(t, client.SetDeadline(time.Now().Add(30*time.Second)))
				return client, wrap(accepted)
			})
		})
	}
}

// waited is a context that does something once somebody waits for its end, as
// whoever looks at a connection does when it begins: not before it has taken the
// connection, however slow the machine is.
type waited struct {
	context.Context
	once func()
}

func whenWaited(ctx context.Context, do func()) context.Context {
	return &waited{ctx, sync.OnceFunc(func() { go do() })}
}

func (w *waited) Done() <-chan struct{} {
	w.once()
	return w.Context.Done()
}

// halves is a connection that must be read to be seen, and can half-close.
type halves struct{ hidden }

func (h halves) CloseWrite() error       { return closeWrite(h.Conn) }
func (h halves) SetLinger(sec int) error { return h.Conn.(*net.TCPConn).SetLinger(sec) }

// dribble writes a few bytes at a time, each for itself, what came first in
// records of its own.
type dribble struct {
	net.Conn
	n int
}

func (d *dribble) Write(p []byte) (int, error) {
	out := p
	if d.n > 0 {
		out = fragmented(p, d.n)
	}
	d.n = 0
	for piece := range slices.Chunk(out, 64) {
		if _, err := d.Conn.Write(piece); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (d *dribble) CloseWrite() error { return closeWrite(d.Conn) }
