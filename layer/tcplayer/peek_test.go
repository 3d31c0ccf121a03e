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

	"github.com/gotower/gotower/internal/conntest"
)

// ways are the kinds of connections: one that the kernel can peek, with and
// without addresses, and one that must be read.
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
				client, accepted := conntest.Pair(t)
				require.NoError(t, client.SetDeadline(time.Now().Add(30*time.Second)))
				return client, wrap(accepted)
			})
		})
	}
}

// waited is a context that runs a function when its end is awaited. A peek does
// so after it has taken the connection.
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

// halves is a connection without peek and with CloseWrite.
type halves struct{ hidden }

func (h halves) CloseWrite() error       { return closeWrite(h.Conn) }
func (h halves) SetLinger(sec int) error { return h.Conn.(*net.TCPConn).SetLinger(sec) }

// dribble writes a few bytes at a time, in separate records.
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
