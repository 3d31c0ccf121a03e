package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

func start(h http.Handler) *httptest.Server { return startAt("127.0.0.1:0", h) }

// startAt starts a server for h at addr. It ends the program if it cannot.
func startAt(addr string, h http.Handler) *httptest.Server {
	l, err := net.Listen("tcp", addr) //nolint:noctx // local
	if err != nil {
		log.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	// NewUnstartedServer has opened a listener of its own.
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	return s
}

// refusing returns an address at which nothing listens.
func refusing(addr string) string {
	l, err := net.Listen("tcp", addr) //nolint:noctx // local
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// newProxy starts a proxy and returns its URL.
func newProxy() string {
	return start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host == proxied {
			_, _ = io.WriteString(w, "used")
		}
	})).URL
}

// names is a DNS server that returns the same addresses for all names.
type names struct {
	addr netip.AddrPort
	conn net.PacketConn

	mu    sync.Mutex
	addrs []string
}

// newNames starts a DNS server for the given IPv4 addresses.
func newNames(addrs ...string) *names {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // local
	if err != nil {
		log.Fatal(err)
	}
	n := &names{addr: netip.MustParseAddrPort(conn.LocalAddr().String()), conn: conn, addrs: addrs}
	go n.run()
	return n
}

func (n *names) close() { _ = n.conn.Close() }

// set replaces the addresses that the server returns from now on.
func (n *names) set(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs = addrs
}

// run answers queries until the socket is closed.
func (n *names) run() {
	for query := make([]byte, 1500); ; {
		size, client, err := n.conn.ReadFrom(query)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(query[:size]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response = true
		m.RecursionAvailable = true
		m.Additionals = nil
		// Questions for other types, such as AAAA, get an empty answer. The TTL of 1 s lets a client notice changes.
		if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
			n.mu.Lock()
			for _, addr := range n.addrs {
				m.Answers = append(m.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type, TTL: 1},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()},
				})
			}
			n.mu.Unlock()
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = n.conn.WriteTo(answer, client)
		}
	}
}
