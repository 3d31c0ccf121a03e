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

// answer is what a DNS server has answered to one question, parsed: addresses, or SRV records.
type answer struct {
	hosts
	srv        []dnsmessage.SRVResource
	additional map[string]hosts // addresses in the additional section, by name in lower case
}

// hosts holds the addresses of one name, from one answer or several.
type hosts struct {
	exists bool // whether the name exists
	addrs  []netip.Addr
	ttl    time.Duration // smallest TTL of the records; the negative TTL if addrs is empty
}

// maxTTL is the TTL for a result without records. It is longer than every record's TTL, so that any
// other TTL wins when the smallest one is taken.
const maxTTL = math.MaxUint32 * time.Second

// hasRecords reports whether the answer contains records of the type in question.
func (a *answer) hasRecords() bool { return len(a.addrs) > 0 || len(a.srv) > 0 }

// interpret returns the answer in msg to the question q. As in Go's resolver, the records' owners
// do not matter: a recursive server sends the records at the end of a CNAME chain, and nothing
// else.
func interpret(msg []byte, q dnsmessage.Question) (answer, error) {
	m, err := unpack(msg)
	if err != nil {
		return answer{}, fmt.Errorf("malformed answer: %w", err)
	}
	rcode, err := status(m)
	if err != nil {
		return answer{}, err
	}
	a := answer{hosts: hosts{exists: rcode == dnsmessage.RCodeSuccess, ttl: maxTTL}}
	// aliased reports whether the answer has a CNAME record, and found whether it has a record of the
	// type in question.
	aliased, found := false, false
	for _, r := range m.Answers {
		aliased = aliased || r.Header.Type == dnsmessage.TypeCNAME
		// take comes first, because it must run for each record. If the name does not exist, no record counts.
		found = a.exists && a.take(r, q.Type) || found
		a.ttl = min(a.ttl, ttlOf(r.Header))
	}
	if found {
		a.store(m.Additionals)
		return a, nil
	}
	// Without records, the SOA record tells for how long that may be believed.
	negativeTTL, hasSOA := negative(m.Authorities)
	a.ttl = min(a.ttl, negativeTTL)
	// An answer without records, without an SOA record and not from a recursive server is a referral to
	// other servers, or a CNAME whose target the server does not know. It says nothing about the name.
	if a.exists && !m.RecursionAvailable && !hasSOA && (aliased || !m.Authoritative) {
		return answer{}, fmt.Errorf("the server does not know %s and is not recursive", q.Name)
	}
	return a, nil
}

// take adds the record r to a if it belongs to the answer to a question for records of the type kind,
// and reports whether it does. For an A or AAAA question, a record of either type belongs to the
// answer, because some servers send both.
func (a *answer) take(r dnsmessage.Resource, kind dnsmessage.Type) bool {
	srv, isSRV := r.Body.(*dnsmessage.SRVResource)
	// Neither SRV records in an answer about addresses, nor the reverse, and no other types such as CNAME.
	if isSRV != (kind == dnsmessage.TypeSRV) || !isSRV && !isAddress(r.Header.Type) {
		return false
	}
	// An unspecified address does not count, but its record belongs to the answer.
	if isSRV {
		a.srv = append(a.srv, *srv)
	} else if addr, ok := address(r); ok {
		a.addrs = append(a.addrs, addr)
	}
	return true
}

// isAddress reports whether kind is A or AAAA.
func isAddress(kind dnsmessage.Type) bool {
	return kind == dnsmessage.TypeA || kind == dnsmessage.TypeAAAA
}

// store copies the addresses in records, the answer's additional section, to a.additional. There,
// servers usually send the addresses of the SRV records' hosts, which then need no question of their
// own. If the answer contains no SRV records, store does nothing.
func (a *answer) store(records []dnsmessage.Resource) {
	if len(a.srv) == 0 {
		return
	}
	// The keys are in lower case, because servers may change the case of a name.
	a.additional = make(map[string]hosts)
	for _, r := range records {
		addr, ok := address(r)
		if !ok {
			continue
		}
		name := fold(r.Header.Name)
		ttl := ttlOf(r.Header)
		h, exists := a.additional[name]
		if exists {
			// A host may have several addresses: they live as long as the shortest-lived one.
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

// negative returns the TTL of an answer without records (RFC 2308, section 5), and whether authorities,
// the answer's authority section, contains an SOA record. Without one, it returns 0 and false, because
// such an answer must not be cached.
func negative(authorities []dnsmessage.Resource) (ttl time.Duration, ok bool) {
	for _, r := range authorities {
		if soa, ok := r.Body.(*dnsmessage.SOAResource); ok {
			// Both limit how long a negative answer may be cached.
			return min(ttlOf(r.Header), seconds(soa.MinTTL)), true
		}
	}
	return 0, false
}

// ttlOf returns the TTL of the record with the header h.
func ttlOf(h dnsmessage.ResourceHeader) time.Duration { return seconds(h.TTL) }

// seconds converts the TTL n of a record to a Duration. A TTL with the highest bit set
// counts as 0 (RFC 2181, section 8).
func seconds(n uint32) time.Duration {
	if n > math.MaxInt32 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// union combines h and o, the answers to the A and AAAA questions for one name. If only one of
// them contains addresses, the result takes its TTL, and otherwise the smaller one.
func (h hosts) union(o hosts) hosts {
	union := hosts{exists: h.exists || o.exists, addrs: append(h.addrs, o.addrs...)}
	// An answer without addresses has a negative TTL, which may be much longer than that of the addresses.
	switch {
	case len(h.addrs) > 0 && len(o.addrs) == 0:
		union.ttl = h.ttl
	case len(o.addrs) > 0 && len(h.addrs) == 0:
		union.ttl = o.ttl
	default:
		union.ttl = min(h.ttl, o.ttl)
	}
	return union
}

// status returns the RCODE of m if it is NOERROR or NXDOMAIN. For any other RCODE it
// returns an error.
func status(m dnsmessage.Message) (dnsmessage.RCode, error) {
	// m.RCode holds only the lower four bits.
	rcode := m.RCode
	// EDNS0 keeps the upper bits of the RCODE in the OPT record (RFC 6891, section 6.1.3).
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

// rcodeError is the error of an answer with an RCODE, a DNS status, other than NOERROR and NXDOMAIN. It
// means that the server could not or would not answer.
type rcodeError dnsmessage.RCode

// mayRejectEDNS reports whether the server may have rejected the question because of EDNS0: with
// FORMERR, NOTIMP or BADVERS.
func (e rcodeError) mayRejectEDNS() bool {
	// The extended RCODE BADVERS of RFC 6891, for which dnsmessage has no name.
	const badvers = 16
	return e == rcodeError(dnsmessage.RCodeFormatError) || e == rcodeError(dnsmessage.RCodeNotImplemented) || e == badvers
}

// Error returns the RCODE's name, if it is a frequent one, and otherwise its number.
func (e rcodeError) Error() string {
	// The index is the RCODE.
	names := [...]string{1: "FORMERR", 2: "SERVFAIL", 4: "NOTIMP", 5: "REFUSED"}
	if int(e) < len(names) && names[e] != "" {
		return names[e]
	}
	return fmt.Sprintf("RCODE %d", uint16(e))
}

// unpack parses those records of a message that this package uses. It skips other records,
// because an unrelated record must not make an answer unreadable. For example, dnsmessage cannot
// parse names with a dot in a label, such as the mailbox in many SOA records. A malformed record ends
// its section and those that follow. It is an error only if the answer section yields no record.
func unpack(msg []byte) (m dnsmessage.Message, err error) {
	var p dnsmessage.Parser
	if m.Header, err = p.Start(msg); err != nil {
		return m, err
	}
	// The caller has compared the question with its own already.
	if err := p.SkipAllQuestions(); err != nil {
		return m, err
	}
	// The parser reads a message from its beginning to its end, so the order of the sections is fixed.
	for _, s := range []struct {
		section
		dst *[]dnsmessage.Resource
	}{
		{section{&p, p.AnswerHeader, p.Answer, p.SkipAnswer}, &m.Answers},
		{section{&p, p.AuthorityHeader, p.Authority, p.SkipAuthority}, &m.Authorities},
		{section{&p, p.AdditionalHeader, p.Additional, p.SkipAdditional}, &m.Additionals},
	} {
		if *s.dst, err = s.records(); err != nil {
			break
		}
	}
	// Addresses that were read before a malformed record are still valid.
	if len(m.Answers) == 0 && err != nil {
		return m, err
	}
	return m, nil
}

// section reads the records in one section of a message: the answers, the authorities or the
// additional section. Its functions are the parser's methods for that section.
type section struct {
	*dnsmessage.Parser

	header func() (dnsmessage.ResourceHeader, error)
	record func() (dnsmessage.Resource, error)
	skip   func() error
}

// records returns the section's records that this package uses. A record that can be neither read nor
// skipped ends the section: its error is returned with the records before it.
func (s section) records() ([]dnsmessage.Resource, error) {
	var list []dnsmessage.Resource
	for {
		// The header is read first: it tells the type, and whether the record must be parsed.
		h, err := s.header()
		switch {
		case errors.Is(err, dnsmessage.ErrSectionDone):
			return list, nil
		case err != nil || !isRead(h.Type):
			// Other types are skipped, and so is a record with a name that cannot be parsed, because that is not the
			// name in question.
			if err := s.skip(); err != nil {
				return list, err
			}
			continue
		}
		r, err := s.read(h)
		if err != nil {
			return list, err
		}
		list = append(list, r)
	}
}

// isRead reports whether this package uses records of the type kind.
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
	// MINIMUM is the last field of a SOA record, and has four bytes.
	n := len(raw.Data) - 4
	if n < 0 {
		return dnsmessage.Resource{}, errors.New("a SOA record is too short")
	}
	soa := &dnsmessage.SOAResource{MinTTL: binary.BigEndian.Uint32(raw.Data[n:])}
	return dnsmessage.Resource{Header: h, Body: soa}, nil
}
