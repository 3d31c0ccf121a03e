package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dialFunc has the signature of net.Dialer.DialContext. network is "udp" or "tcp". With
// "udp", each Read and Write must be one message.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// client sends questions to DNS servers.
type client struct {
	dial dialFunc
	// the index of the server to ask first, modulo the number of servers; incremented when
	// that server fails
	first atomic.Uint32
}

// ask sends a question for records of name to the servers, one after the other, until one of them
// answers. It tries each server conf.attempts times. If no server answers, it returns the last
// error.
func (c *client) ask(ctx context.Context, conf config, name string, kind dnsmessage.Type) (answer, error) {
	var last error
	first, n := c.first.Load(), uint32(len(conf.servers))
	for i := range uint32(conf.attempts) * n {
		server := conf.servers[(first+i)%n]
		a, err := c.message(ctx, conf.timeout, server, name, kind)
		if err == nil {
			return a, nil
		}
		if ctx.Err() != nil {
			return answer{}, context.Cause(ctx)
		}
		last = fmt.Errorf("%s of %s from %v: %w", kindName(kind), name, server, err)
		c.first.CompareAndSwap(first+i, first+i+1)
	}
	return answer{}, last
}

// kindName returns the name of a record type, such as "AAAA".
func kindName(kind dnsmessage.Type) string { return strings.TrimPrefix(kind.String(), "Type") }

// message sends one question to one server and returns the answer. It uses UDP, and then TCP if the
// answer is truncated. Each message uses its own connection and thus its own port.
func (c *client) message(
	ctx context.Context, timeout time.Duration, server netip.AddrPort, name string, kind dnsmessage.Type,
) (answer, error) {
	q, err := newQuery(name, kind)
	if err != nil {
		return answer{}, err
	}
	msg, truncated, err := c.exchange(ctx, timeout, "udp", server, q)
	if err == nil && truncated {
		msg, truncated, err = c.exchange(ctx, timeout, "tcp", server, q)
	}
	switch {
	case err != nil:
		return answer{}, err
	case truncated:
		return answer{}, errors.New("the answer is truncated even over TCP")
	}
	return interpret(msg, q.question)
}

func (c *client) exchange(
	ctx context.Context, timeout time.Duration, network string, server netip.AddrPort, q query,
) (msg []byte, truncated bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %v over %s", timeout, network))
	defer cancel()
	conn, err := c.dial(ctx, network, server.String())
	if err != nil {
		return nil, false, causeOr(ctx, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	talk := overUDP
	if network == "tcp" {
		talk = overTCP
	}
	msg, truncated, err = talk(conn, q)
	if err != nil {
		return nil, false, causeOr(ctx, err)
	}
	return msg, truncated, nil
}

// causeOr returns the cause of ctx if ctx has ended, and err otherwise.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// overUDP sends q over conn and returns the answer, and whether the server truncated it. It
// ignores messages that do not answer q, such as late or forged ones.
func overUDP(conn net.Conn, q query) (msg []byte, truncated bool, err error) {
	if _, err := conn.Write(q.packed); err != nil {
		return nil, false, err
	}
	buf := make([]byte, 4096) // some servers send more than the requested size
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, false, err
		}
		if ok, truncated := q.answeredBy(buf[:n]); ok {
			return buf[:n], truncated, nil
		}
	}
}

// overTCP sends q over conn and returns the answer. On TCP, each message is preceded by its
// length (RFC 1035, section 4.2.2).
func overTCP(conn net.Conn, q query) (msg []byte, truncated bool, err error) {
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(q.packed)))
	if _, err := conn.Write(append(framed, q.packed...)); err != nil {
		return nil, false, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, false, err
	}
	msg = make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, msg); err != nil {
		return nil, false, err
	}
	ok, truncated := q.answeredBy(msg)
	if !ok {
		return nil, false, errors.New("the message over tcp is not the answer to the question")
	}
	return msg, truncated, nil
}

// payload is the largest answer over UDP that a query allows, in bytes. An answer of
// that size is not fragmented where IPv6 works (DNS flag day 2020).
const payload = 1232

// query is one question with the id of its message.
type query struct {
	id       uint16
	question dnsmessage.Question
	packed   []byte // the message to send
}

// newQuery returns a query for records of name. The name must be complete: no domain of the
// search list is added. The id is random, because that makes it difficult to forge an
// answer.
func newQuery(name string, kind dnsmessage.Type) (query, error) {
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
	var opt dnsmessage.ResourceHeader
	if err := opt.SetEDNS0(payload, dnsmessage.RCodeSuccess, false); err != nil {
		return query{}, fmt.Errorf("name %q: %w", name, err)
	}
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{q.question},
		Additionals: []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}},
	}
	if q.packed, err = m.Pack(); err != nil {
		return query{}, fmt.Errorf("name %q: %w", name, err)
	}
	return q, nil
}

// answeredBy reports whether msg answers q, and whether the answer is truncated. msg
// answers q if it has the id and the question of q. A message that reports an error may
// lack the question.
func (q query) answeredBy(msg []byte) (ok, truncated bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || !h.Response || h.ID != q.id || h.OpCode != 0 {
		return false, false
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return err == nil && len(questions) == 0 && h.RCode != dnsmessage.RCodeSuccess, false
	}
	asked := questions[0]
	same := asked.Type == q.question.Type && asked.Class == q.question.Class && fold(asked.Name) == fold(q.question.Name)
	return same, h.Truncated
}

func fold(n dnsmessage.Name) string { return strings.ToLower(n.String()) }
