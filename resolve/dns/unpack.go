package dns

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/net/dns/dnsmessage"
)

// unpack reads what counts of a message, and passes over the rest: a record that
// nobody asked for must not make an answer unreadable. Names with a dot in a label
// are what dnsmessage does not read, and many a SOA record has one, as the mailbox
// of the zone.
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

// section is one of the three that have records.
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
			// A name that cannot be read is none that was asked for.
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

// read reads the record of a header. Of a SOA, that is the last of its numbers
// alone, behind the names.
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
