package dns

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answer is what a server said to one question.
type answer struct {
	hosts
	srv        []dnsmessage.SRVResource
	additional map[string]hosts // addresses that came along, by folded name

	// alias is the end of the CNAMEs, if the server left it out as none of its own.
	// Then hosts says nothing but how long the CNAMEs are good for.
	alias string
}

// hosts is what is known of a name's addresses.
type hosts struct {
	exists bool // there is such a name
	addrs  []netip.Addr
	ttl    time.Duration // how long that is good for, be it that there is nothing
}

// longest is more than any TTL is.
const longest = math.MaxUint32 * time.Second

// interpret reads the answer to q. It is an error if it is malformed, or if it
// says that the server cannot tell.
func interpret(msg []byte, q dnsmessage.Question) (answer, error) {
	m, err := unpack(msg)
	if err != nil {
		return answer{}, fmt.Errorf("malformed answer: %w", err)
	}
	rcode, err := status(m)
	if err != nil {
		return answer{}, err
	}
	end, ttl, err := canonical(q.Name, m.Answers)
	if err != nil {
		return answer{}, err
	}
	a := answer{hosts: hosts{exists: rcode == dnsmessage.RCodeSuccess}}
	records := longest
	if a.exists {
		records = a.take(fold(end), q.Type, m.Answers)
	}
	if records < longest {
		a.ttl = min(ttl, records)
		a.keep(m.Additionals)
		return a, nil
	}
	none, said := negative(m.Authorities)
	a.ttl = min(ttl, none)
	if a.exists && !m.RecursionAvailable {
		switch {
		case len(m.Answers) == 0 && !m.Authoritative:
			return answer{}, errors.New("the server does not know the name, and asks nobody who does")
		case fold(end) != fold(q.Name) && !said:
			a.alias, a.ttl = end.String(), ttl
		}
	}
	return a, nil
}

// canonical follows the CNAMEs from name. They may be in any order.
func canonical(from dnsmessage.Name, records []dnsmessage.Resource) (end dnsmessage.Name, ttl time.Duration, err error) {
	aliases := make(map[string]dnsmessage.Resource)
	for _, r := range records {
		if r.Header.Type == dnsmessage.TypeCNAME && r.Header.Class == dnsmessage.ClassINET {
			aliases[fold(r.Header.Name)] = r
		}
	}
	end, ttl = from, longest
	for range len(aliases) + 1 {
		r, ok := aliases[fold(end)]
		if !ok {
			return end, ttl, nil
		}
		ttl = min(ttl, ttlOf(r.Header))
		if c, ok := r.Body.(*dnsmessage.CNAMEResource); ok {
			end = c.CNAME
		}
	}
	return dnsmessage.Name{}, 0, fmt.Errorf("the CNAMEs of %s go in a circle", from)
}

// take takes the records of name that are of the kind, and returns the smallest
// TTL of them; longest if there is none.
func (a *answer) take(name string, kind dnsmessage.Type, records []dnsmessage.Resource) time.Duration {
	ttl := longest
	for _, r := range records {
		if r.Header.Type != kind || r.Header.Class != dnsmessage.ClassINET || fold(r.Header.Name) != name {
			continue
		}
		ttl = min(ttl, ttlOf(r.Header))
		if srv, ok := r.Body.(*dnsmessage.SRVResource); ok {
			a.srv = append(a.srv, *srv)
		}
		if addr, ok := address(r); ok {
			a.addrs = append(a.addrs, addr)
		}
	}
	return ttl
}

// keep keeps the addresses in the additional section, for the SRV records' sake.
func (a *answer) keep(records []dnsmessage.Resource) {
	if len(a.srv) == 0 {
		return
	}
	a.additional = make(map[string]hosts)
	for _, r := range records {
		addr, ok := address(r)
		if !ok || r.Header.Class != dnsmessage.ClassINET {
			continue
		}
		name, ttl := fold(r.Header.Name), ttlOf(r.Header)
		h, known := a.additional[name]
		if known {
			ttl = min(ttl, h.ttl)
		}
		a.additional[name] = hosts{exists: true, addrs: append(h.addrs, addr), ttl: ttl}
	}
}

// address is where a record says that something can be reached. The unspecified
// address, by which filters of DNS say that a name is blocked, is nowhere: a
// connection to it would go to this host.
func address(r dnsmessage.Resource) (addr netip.Addr, ok bool) {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		addr = netip.AddrFrom4(body.A)
	case *dnsmessage.AAAAResource:
		addr = netip.AddrFrom16(body.AAAA).Unmap()
	}
	return addr, addr.IsValid() && !addr.IsUnspecified()
}

// negative is how long it is good that there is nothing: RFC 2308, section 5.
// Without a SOA record it is not said, and must not be kept.
func negative(authorities []dnsmessage.Resource) (ttl time.Duration, said bool) {
	for _, r := range authorities {
		if soa, ok := r.Body.(*dnsmessage.SOAResource); ok {
			return min(ttlOf(r.Header), seconds(soa.MinTTL)), true
		}
	}
	return 0, false
}

func ttlOf(h dnsmessage.ResourceHeader) time.Duration { return seconds(h.TTL) }

// seconds reads a TTL; what has the highest bit set is 0: RFC 2181, section 8.
func seconds(n uint32) time.Duration {
	if n > math.MaxInt32 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// and is what is known of a name by two answers to two questions.
func (h hosts) and(o hosts) hosts {
	both := hosts{exists: h.exists || o.exists, addrs: append(h.addrs, o.addrs...)}
	switch {
	case len(h.addrs) > 0 && len(o.addrs) == 0:
		both.ttl = h.ttl
	case len(o.addrs) > 0 && len(h.addrs) == 0:
		both.ttl = o.ttl
	default:
		both.ttl = min(h.ttl, o.ttl)
	}
	return both
}
