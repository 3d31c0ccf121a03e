package dns

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// payload is the largest answer that is asked for over UDP: it passes without
// fragments wherever IPv6 does (DNS flag day 2020).
const payload = 1232

// query is one question under its id.
type query struct {
	id       uint16
	question dnsmessage.Question
	packed   []byte
}

// newQuery packs a question for a complete name, with EDNS0 or without. The id is
// random, for it is part of what keeps answers of others out.
func newQuery(name string, kind dnsmessage.Type, edns bool) (query, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return query{}, fmt.Errorf("name %q: %w", name, err)
	}
	var id [2]byte
	rand.Read(id[:])
	q := query{
		id:       binary.BigEndian.Uint16(id[:]),
		question: dnsmessage.Question{Name: n, Type: kind, Class: dnsmessage.ClassINET},
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q.question},
	}
	if edns {
		var opt dnsmessage.ResourceHeader
		if err := opt.SetEDNS0(payload, dnsmessage.RCodeSuccess, false); err != nil {
			return query{}, fmt.Errorf("name %q: %w", name, err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
	}
	if q.packed, err = m.Pack(); err != nil {
		return query{}, fmt.Errorf("name %q: %w", name, err)
	}
	return q, nil
}

// answeredBy reports whether msg is an answer to q, by its id and its question,
// and whether it is cut short. It does not look further. A server that could not
// read q need not repeat the question.
func (q query) answeredBy(msg []byte) (ok, truncated bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || !h.Response || h.ID != q.id || h.OpCode != 0 {
		return false, false
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return err == nil && len(questions) == 0 && unknown(h.RCode), false
	}
	asked := questions[0]
	same := asked.Type == q.question.Type && asked.Class == q.question.Class && fold(asked.Name) == fold(q.question.Name)
	return same, h.Truncated
}

// fold makes names comparable.
func fold(n dnsmessage.Name) string { return strings.ToLower(n.String()) }
