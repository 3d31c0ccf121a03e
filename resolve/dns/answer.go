package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// answer is the parsed answer of a DNS server to one question.
type answer struct {
	hosts
	srv        []dnsmessage.SRVResource
	additional map[string]hosts // addresses in the additional section, by name in lower case
}

// hosts has the addresses of one name.
type hosts struct {
	exists bool // whether the name exists
	addrs  []netip.Addr
	ttl    time.Duration // smallest TTL of the records; the negative TTL if addrs is empty
}

// maxTTL is the TTL of a result without records. It has no effect on the minimum of several TTLs,
// because no record has a longer TTL.
const maxTTL = math.MaxUint32 * time.Second

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
	records := maxTTL
	if a.exists {
		records = a.take(fold(end), q.Type, m.Answers)
	}
	if records < maxTTL {
		a.ttl = min(ttl, records)
		a.keep(m.Additionals)
		return a, nil
	}
	negativeTTL, hasSOA := negative(m.Authorities)
	a.ttl = min(ttl, negativeTTL)
	aliased := fold(end) != fold(q.Name)
	if a.exists && !m.RecursionAvailable && (aliased && !hasSOA || !aliased && !m.Authoritative) {
		return answer{}, fmt.Errorf("the server does not know %s and is not recursive", end)
	}
	return a, nil
}

// canonical follows the CNAME records from name to the last name, which is the result end. The
// records may be in any order. ttl is the smallest TTL of the followed records, or maxTTL.
// canonical returns an error if the records form a circle.
func canonical(name dnsmessage.Name, records []dnsmessage.Resource) (end dnsmessage.Name, ttl time.Duration, err error) {
	aliases := make(map[string]dnsmessage.Resource)
	for _, r := range records {
		if r.Header.Type == dnsmessage.TypeCNAME && r.Header.Class == dnsmessage.ClassINET {
			aliases[fold(r.Header.Name)] = r
		}
	}
	end, ttl = name, maxTTL
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
	return dnsmessage.Name{}, 0, fmt.Errorf("the CNAMEs of %s go in a circle", name)
}

// take selects the records with the given name and type. It adds SRV records to a.srv and the
// addresses in other records to a.addrs. It returns the smallest TTL of the selected records, or
// maxTTL if none is selected.
func (a *answer) take(name string, kind dnsmessage.Type, records []dnsmessage.Resource) time.Duration {
	ttl := maxTTL
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

// keep stores in a.additional the addresses in records, the additional section of the answer. The
// hosts of the SRV records are first looked up there. If the answer has no SRV records, keep does
// nothing.
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

// address returns the address in an A or AAAA record. It returns false for other records
// and for the unspecified address. DNS filters return the unspecified address for blocked
// names, and a connection to it would go to this host.
func address(r dnsmessage.Resource) (addr netip.Addr, ok bool) {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		addr = netip.AddrFrom4(body.A)
	case *dnsmessage.AAAAResource:
		addr = netip.AddrFrom16(body.AAAA).Unmap()
	}
	return addr, addr.IsValid() && !addr.IsUnspecified()
}

// negative returns the TTL of an answer without records (RFC 2308, section 5). It returns 0
// and false without an SOA record, because such an answer must not be cached.
func negative(authorities []dnsmessage.Resource) (ttl time.Duration, ok bool) {
	for _, r := range authorities {
		if soa, ok := r.Body.(*dnsmessage.SOAResource); ok {
			return min(ttlOf(r.Header), seconds(soa.MinTTL)), true
		}
	}
	return 0, false
}

func ttlOf(h dnsmessage.ResourceHeader) time.Duration { return seconds(h.TTL) }

// seconds converts the TTL n of a record to a Duration. A TTL with the highest bit set
// counts as 0 (RFC 2181, section 8).
func seconds(n uint32) time.Duration {
	if n > math.MaxInt32 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// union combines h and o, the answers to the A and AAAA questions for one name. If only one of the
// answers has addresses, the result has the TTL of that answer. Otherwise it has the smaller TTL.
func (h hosts) union(o hosts) hosts {
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

// status returns the RCODE of m if it is NOERROR or NXDOMAIN. For any other RCODE it
// returns an error.
func status(m dnsmessage.Message) (dnsmessage.RCode, error) {
	rcode := m.RCode
	for _, r := range m.Additionals {
		if r.Header.Type == dnsmessage.TypeOPT {
			rcode = r.Header.ExtendedRCode(rcode)
		}
	}
	if rcode == dnsmessage.RCodeSuccess || rcode == dnsmessage.RCodeNameError {
		return rcode, nil
	}
	return rcode, rcodeError(rcode)
}

// rcodeError is the error of an answer with an RCODE other than NOERROR and NXDOMAIN.
type rcodeError dnsmessage.RCode

func (e rcodeError) Error() string {
	names := [...]string{1: "FORMERR", 2: "SERVFAIL", 4: "NOTIMP", 5: "REFUSED"}
	if int(e) < len(names) && names[e] != "" {
		return names[e]
	}
	return fmt.Sprintf("RCODE %d", uint16(e))
}

// unpack parses those records of a message that this package uses. It skips other records,
// because an unrelated record must not make an answer unreadable. For example, dnsmessage
// cannot parse names with a dot in a label. Many SOA records have such a name as the
// mailbox of the zone.
func unpack(msg []byte) (m dnsmessage.Message, err error) {
	var p dnsmessage.Parser
	if m.Header, err = p.Start(msg); err != nil {
		return m, err
	}
	if err := p.SkipAllQuestions(); err != nil {
		return m, err
	}
	for _, s := range []struct {
		section
		to *[]dnsmessage.Resource
	}{
		{section{&p, p.AnswerHeader, p.Answer, p.SkipAnswer}, &m.Answers},
		{section{&p, p.AuthorityHeader, p.Authority, p.SkipAuthority}, &m.Authorities},
		{section{&p, p.AdditionalHeader, p.Additional, p.SkipAdditional}, &m.Additionals},
	} {
		if *s.to, err = s.records(); err != nil {
			return m, err
		}
	}
	return m, nil
}

// section reads the records of one section of a message: of the answers, the authorities or the
// additional section. Its functions are the methods of the parser for that section.
type section struct {
	*dnsmessage.Parser

	header func() (dnsmessage.ResourceHeader, error)
	record func() (dnsmessage.Resource, error)
	skip   func() error
}

func (s section) records() ([]dnsmessage.Resource, error) {
	var list []dnsmessage.Resource
	for {
		h, err := s.header()
		switch {
		case errors.Is(err, dnsmessage.ErrSectionDone):
			return list, nil
		case err != nil || !isRead(h.Type):
			// A name that cannot be parsed is not the name in question.
			if err := s.skip(); err != nil {
				return nil, err
			}
			continue
		}
		r, err := s.read(h)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
}

func isRead(kind dnsmessage.Type) bool {
	return slices.Contains([]dnsmessage.Type{
		dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeSRV, dnsmessage.TypeCNAME, dnsmessage.TypeSOA, dnsmessage.TypeOPT,
	}, kind)
}

// read parses the record with the header h. In a SOA record it parses only the last number,
// MINIMUM, because dnsmessage may be unable to parse the names before it.
func (s section) read(h dnsmessage.ResourceHeader) (dnsmessage.Resource, error) {
	if h.Type != dnsmessage.TypeSOA {
		return s.record()
	}
	raw, err := s.UnknownResource()
	if err != nil {
		return dnsmessage.Resource{}, err
	}
	n := len(raw.Data) - 4
	if n < 0 {
		return dnsmessage.Resource{}, errors.New("a SOA record is too short")
	}
	soa := &dnsmessage.SOAResource{MinTTL: binary.BigEndian.Uint32(raw.Data[n:])}
	return dnsmessage.Resource{Header: h, Body: soa}, nil
}
