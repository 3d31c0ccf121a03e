package dns

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// server is a DNS server. The tests change its zone. It speaks real UDP and
// TCP, or through pipes in a bubble.
type server struct {
	mu         sync.Mutex
	zone       map[string][]dnsmessage.Resource // by an arbitrary key
	additional bool                             // send the addresses of SRV targets along
	fault      func(network string, q dnsmessage.Question) *reply
	seen       []string // "udp A web."
	script     script   // makes the packets of an answer; nil means the right one
}

// script returns the packets of an answer. The messages are the query and the right answer.
type script func(network string, query, right dnsmessage.Message) [][]byte

// reply is what a fault does instead of answering.
type reply struct {
	silent    bool
	rcode     dnsmessage.RCode
	truncated bool
	before    func(right dnsmessage.Message) []dnsmessage.Message // sent before the right answer
}

// records reads lines such as "web. 60 A 10.0.0.1", "web. 60 CNAME www." and
// "_a._b.web. 60 SRV 0 5 80 www." (priority, weight, port).
func records(lines ...string) []dnsmessage.Resource {
	var list []dnsmessage.Resource
	for _, line := range lines {
		f := strings.Fields(line)
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(f[0]), TTL: number(f[1]), Class: dnsmessage.ClassINET}
		var body dnsmessage.ResourceBody
		switch f[2] {
		case "A":
			h.Type, body = dnsmessage.TypeA, &dnsmessage.AResource{A: netip.MustParseAddr(f[3]).As4()}
		case "AAAA":
			h.Type, body = dnsmessage.TypeAAAA, &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(f[3]).As16()}
		case "CNAME":
			h.Type, body = dnsmessage.TypeCNAME, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(f[3])}
		case "TXT":
			h.Type, body = dnsmessage.TypeTXT, &dnsmessage.TXTResource{TXT: []string{f[3]}}
		case "SOA":
			h.Type = dnsmessage.TypeSOA
			body = &dnsmessage.SOAResource{NS: h.Name, MBox: h.Name, MinTTL: number(f[3])}
		case "SRV":
			h.Type = dnsmessage.TypeSRV
			body = &dnsmessage.SRVResource{
				Priority: uint16(number(f[3])), Weight: uint16(number(f[4])), Port: uint16(number(f[5])),
				Target: dnsmessage.MustNewName(f[6]),
			}
		default:
			panic(line)
		}
		list = append(list, dnsmessage.Resource{Header: h, Body: body})
	}
	return list
}

func number(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		panic(err)
	}
	return uint32(n)
}

// put makes lines all that the zone has under key; none of them takes it away.
func (s *server) put(key string, lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zone == nil {
		s.zone = make(map[string][]dnsmessage.Resource)
	}
	s.zone[key] = records(lines...)
}

func (s *server) fail(how func(network string, q dnsmessage.Question) *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = how
}

func always(r reply) func(string, dnsmessage.Question) *reply {
	return func(string, dnsmessage.Question) *reply { return &r }
}

// asked returns the questions since the last call.
func (s *server) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// find returns the records of a name, those behind its CNAME, and whether there
// is such a name.
func (s *server) find(name dnsmessage.Name, kind dnsmessage.Type) (found []dnsmessage.Resource, exists bool) {
	for _, list := range s.zone {
		for _, r := range list {
			if fold(r.Header.Name) != fold(name) || r.Header.Type == dnsmessage.TypeSOA {
				continue
			}
			exists = true
			if r.Header.Type == kind {
				found = append(found, r)
			}
			if c, ok := r.Body.(*dnsmessage.CNAMEResource); ok && len(found) < 100 {
				found = append(found, r)
				var more []dnsmessage.Resource
				more, exists = s.find(c.CNAME, kind)
				found = append(found, more...)
			}
		}
	}
	return found, exists
}

// answer returns the packets to send, in order.
func (s *server) answer(network string, packet []byte) (packets [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m dnsmessage.Message
	if m.Unpack(packet) != nil || len(m.Questions) != 1 {
		return nil
	}
	query, q, size := m, m.Questions[0], 512
	for _, r := range m.Additionals {
		if r.Header.Type == dnsmessage.TypeOPT {
			size = int(r.Header.Class)
		}
	}
	s.seen = append(s.seen, fmt.Sprint(network, " ", kindName(q.Type), " ", q.Name))
	m = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	var exists bool
	m.Answers, exists = s.find(q.Name, q.Type)
	if !exists {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, list := range s.zone {
		for _, r := range list {
			if r.Header.Type == dnsmessage.TypeSOA {
				m.Authorities = append(m.Authorities, r)
			}
		}
	}
	for _, r := range m.Answers {
		if srv, ok := r.Body.(*dnsmessage.SRVResource); ok && s.additional {
			for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
				more, _ := s.find(srv.Target, kind)
				m.Additionals = append(m.Additionals, more...)
			}
		}
	}
	if s.script != nil {
		return s.script(network, query, m)
	}
	before, silent := s.spoil(network, &m)
	if silent {
		return nil
	}
	if packed, err := m.Pack(); err != nil || network == "udp" && len(packed) > size {
		m.Truncated, m.Answers, m.Additionals = true, m.Answers[:min(1, len(m.Answers))], nil
	}
	for _, m := range append(before, m) {
		packed, _ := m.Pack()
		packets = append(packets, packed)
	}
	return packets
}

// spoil changes m according to the fault, and returns messages to send before it.
func (s *server) spoil(network string, m *dnsmessage.Message) (before []dnsmessage.Message, silent bool) {
	if s.fault == nil {
		return nil, false
	}
	f := s.fault(network, m.Questions[0])
	if f == nil || f.silent {
		return nil, f != nil
	}
	if f.before != nil {
		before = f.before(*m)
	}
	if f.rcode != 0 {
		m.RCode, m.Answers, m.Authorities, m.Additionals = f.rcode, nil, nil, nil
	}
	m.Truncated = f.truncated
	return before, false
}
