package grpclayer

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// zone is a DNS server on a UDP socket with records that a test changes.
type zone struct {
	mu      sync.Mutex
	addrs   []netip.Addr // of every name
	ports   []uint16     // of its SRV records, of the same host
	fails   map[dnsmessage.Type]dnsmessage.RCode
	queries map[dnsmessage.Type]int
	conn    net.PacketConn
}

func serveZone(t testing.TB, addrs ...string) *zone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	z := &zone{conn: conn, queries: make(map[dnsmessage.Type]int)}
	z.set(addrs...)
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := z.answer(buf[:n]); answer != nil {
				conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return z
}

// resolver queries the zone with the shortest refresh.
func (z *zone) resolver() resolve.Resolver {
	return dns.New(dns.WithServers(netip.MustParseAddrPort(z.conn.LocalAddr().String())),
		dns.WithRefresh(1, 1), dns.WithBackoff(resolve.Backoff{Min: 1e6, Max: 1e7}))
}

func (z *zone) set(addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs = nil
	for _, a := range addrs {
		z.addrs = append(z.addrs, netip.MustParseAddr(a))
	}
}

// serve sets the ports of SRV records.
func (z *zone) serve(port uint16) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.ports = []uint16{port}
}

// fail sets the response code for a record type.
func (z *zone) fail(code dnsmessage.RCode, kinds ...dnsmessage.Type) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.fails = make(map[dnsmessage.Type]dnsmessage.RCode)
	for _, k := range kinds {
		z.fails[k] = code
	}
}

func (z *zone) count(kind dnsmessage.Type) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.queries[kind]
}

func (z *zone) answer(packet []byte) []byte {
	z.mu.Lock()
	defer z.mu.Unlock()
	var m dnsmessage.Message
	if m.Unpack(packet) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	z.queries[q.Type]++
	m = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RCode: z.fails[q.Type]}, Questions: m.Questions}
	h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET}
	switch {
	case m.RCode != 0:
	case strings.HasPrefix(q.Name.String(), "missing."):
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		for _, a := range z.addrs {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		}
	case q.Type == dnsmessage.TypeSRV:
		for _, p := range z.ports {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.SRVResource{
				Port: p, Target: dnsmessage.MustNewName("one.test."),
			}})
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}
