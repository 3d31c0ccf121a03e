package layertest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
)

const backlog = 128 // as the kernel's: connections made and not yet accepted

// listener passes connections from Dial to Accept. Its channels belong to the
// bubble in which Listen was called.
type listener struct {
	on      *Network
	network string
	address netip.AddrPort
	queue   chan *conn
	closed  chan struct{}
	once    sync.Once
}

func newListener(on *Network, network string, address netip.AddrPort) *listener {
	return &listener{
		on: on, network: network, address: address,
		queue: make(chan *conn, backlog), closed: make(chan struct{}),
	}
}

// offer puts a connection into the backlog.
func (l *listener) offer(ctx context.Context, c *conn) error {
	refusal := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	// A select among ready cases is random, and closed must come first.
	select {
	case <-l.closed:
		return refusal
	default:
	}
	select {
	case l.queue <- c:
	case <-l.closed:
		return refusal
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-l.closed:
		// Close may have emptied the backlog just before c came into it.
		c.reset()
		return refusal
	default:
		return nil
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, l.fail("accept")
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, l.fail("accept")
	}
}

// Close closes the connections in the backlog, as the kernel does.
func (l *listener) Close() error {
	err := l.fail("close")
	l.once.Do(func() {
		err = nil
		l.on.remove(l)
		close(l.closed)
		for {
			select {
			case c := <-l.queue:
				c.reset()
			default:
				return
			}
		}
	})
	return err
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.address) }

func (l *listener) fail(op string) error {
	return &net.OpError{Op: op, Net: l.network, Addr: l.Addr(), Err: net.ErrClosed}
}
