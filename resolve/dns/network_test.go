package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// loopback serves on a port of 127.0.0.1, UDP and TCP, until the test ends.
func (s *server) loopback(t testing.TB) netip.AddrPort {
	t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	var err error
	for range 10 { // another program may have the same port of the other kind
		udp, err = net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			break
		}
		udp.Close()
	}
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		udp.Close()
		tcp.Close()
		serving.Wait()
	})
	serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, packed := range s.answer("udp", buf[:n]) {
				udp.WriteTo(packed, from)
			}
		}
	})
	serving.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serveTCP(conn) })
		}
	})
	return netip.MustParseAddrPort(udp.LocalAddr().String())
}

func (s *server) serveTCP(conn net.Conn) {
	defer conn.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		packet := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, packet); err != nil {
			return
		}
		for _, packed := range s.answer("tcp", packet) {
			if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)); err != nil {
				return
			}
		}
	}
}

// network is a set of servers that are dialed in a bubble. A pipe keeps each Write as
// one message if one Read gets all of it.
type network map[string]*server

func (n network) dial(_ context.Context, kind, address string) (net.Conn, error) {
	s := n[address]
	if s == nil {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		if kind == "tcp" {
			s.serveTCP(far)
			return
		}
		buf := make([]byte, 4096)
		for {
			size, err := far.Read(buf)
			if err != nil {
				return
			}
			for _, packed := range s.answer("udp", buf[:size]) {
				if _, err := far.Write(packed); err != nil {
					return
				}
			}
		}
	}()
	return near, nil
}

func dialer(dial dialFunc) Option { return func(o *options) { o.dial = dial } }

// bubble makes a resolver and its only server, for a bubble.
func bubble(opts ...Option) (*Resolver, *server) {
	s := &server{}
	n := network{"10.0.0.53:53": s}
	all := []Option{WithServers(netip.MustParseAddrPort("10.0.0.53:0")), dialer(n.dial)}
	return New(slices.Concat(all, opts)...), s
}
