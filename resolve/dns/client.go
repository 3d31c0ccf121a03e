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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dialFunc looks like net.Dialer.DialContext. network is "udp" or "tcp". With "udp", each Read
// and Write must be one message.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// client sends questions to DNS servers. It keeps no connections. It is safe for concurrent use.
type client struct {
	dial    dialFunc
	rotated atomic.Uint32 // the number of questions that were asked with the option rotate
}

// patience is how long a server may stay silent before the question is sent to the next server too,
// while the first answer is still awaited. So a lost message or a dead server costs a second, and not
// the whole timeout, which might be as long as a caller waits.
const patience = time.Second

// attempt is the outcome of one message to one server. number counts the messages of a question from 0.
type attempt struct {
	number int
	answer answer
	err    error
}

// ask sends a question for records of name to the servers, one after the other, until one of them
// answers. It tries each server conf.attempts times. A message is sent when the previous one has
// failed or stays unanswered for patience; the earlier answer is still awaited. An answer without
// records counts only if no earlier message is waiting, because a later server may not know this
// network's names. If no server answers, ask returns the last error.
func (c *client) ask(ctx context.Context, conf config, name string, kind dnsmessage.Type) (answer, error) {
	servers := conf.servers
	if conf.rotate {
		first := int(c.rotated.Add(1)-1) % len(servers)
		// The servers are rotated in a copy: conf may share its slice with the options.
		servers = slices.Concat(servers[first:], servers[:first])
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	// First cancel, then wait: deferred calls run in reverse order.
	defer running.Wait()
	defer cancel()

	// Unbuffered: a message whose outcome nobody awaits any longer ends with ctx.
	outcomes := make(chan attempt)
	next := time.NewTimer(patience) // fires when the next message is due
	defer next.Stop()
	limit := conf.attempts * len(servers)
	sent := 0
	var waiting []int     // the numbers of the messages without an outcome, in ascending order
	var negative *attempt // the answer without records to the earliest message that got one
	var last error        // the last error, for the case that no server answers
	send := func() {
		number := sent
		sent++
		waiting = append(waiting, number)
		running.Go(func() {
			a, err := c.message(ctx, conf, servers[number%len(servers)], name, kind)
			select {
			case outcomes <- attempt{number, a, err}:
			case <-ctx.Done():
			}
		})
		// The next message is sent after patience, or earlier if this one fails.
		next.Reset(patience)
	}
	send()
	// Each round either sends a message, or takes an outcome and then decides what follows.
	for {
		select {
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		case <-next.C:
			// After a negative answer nothing more is sent: only the earlier messages can change it.
			// Each server is tried only as often as allowed.
			if negative == nil && sent < limit {
				send()
			}
			continue
		case o := <-outcomes:
			waiting = slices.DeleteFunc(waiting, func(n int) bool { return n == o.number })
			switch {
			case o.err != nil:
				last = o.err
			case o.answer.hasRecords():
				return o.answer, nil
			// A later server may not know a name that an earlier one knows, so the earliest answer counts.
			case negative == nil || o.number < negative.number:
				negative = &o
			}
		}
		switch {
		// No earlier message can still be answered with records.
		case negative != nil && (len(waiting) == 0 || waiting[0] > negative.number):
			return negative.answer, nil
		// Deliberately empty: wait for the other messages.
		case len(waiting) > 0:
		// Every message has failed.
		case sent == limit:
			return answer{}, last
		// The message has failed and no other one is waiting, so the next server is asked at once.
		default:
			send()
		}
	}
}

// kindName returns a record type's name, such as "AAAA".
func kindName(kind dnsmessage.Type) string { return strings.TrimPrefix(kind.String(), "Type") }

// message sends one question to one server and returns the answer. If the server does not support
// EDNS0, message sends the question again without it (RFC 6891, section 6.2.2).
func (c *client) message(
	ctx context.Context, conf config, server netip.AddrPort, name string, kind dnsmessage.Type,
) (answer, error) {
	q, err := newQuery(name, kind, payload)
	if err != nil {
		return answer{}, err
	}
	a, err := c.send(ctx, conf, server, q)
	if rcode, ok := errors.AsType[rcodeError](err); ok && rcode.mayRejectEDNS() {
		// Once more without EDNS0, which old servers reject.
		if q, err = newQuery(name, kind, 0); err == nil {
			a, err = c.send(ctx, conf, server, q)
		}
	}
	if err != nil {
		return answer{}, fmt.Errorf("%s of %s from %v: %w", kindName(kind), name, server, err)
	}
	return a, nil
}

// send sends q to one server and returns the answer. It uses UDP, and TCP if the answer is truncated
// or conf says so. An answer that is truncated over TCP too counts as it is. Each message uses its
// own connection and thus its own port.
func (c *client) send(ctx context.Context, conf config, server netip.AddrPort, q query) (answer, error) {
	networks := []string{"udp", "tcp"}
	if conf.overTCP {
		networks = networks[1:]
	}
	// TCP is reached only if the answer over UDP was truncated.
	for _, network := range networks {
		msg, truncated, err := c.exchange(ctx, conf.timeout, network, server, q)
		switch {
		case err != nil:
			return answer{}, err
		case !truncated || network == "tcp":
			return interpret(msg, q.question)
		}
	}
	return answer{}, nil // not reached: the last network is TCP
}

// exchange sends q to one server over a new connection, and returns the answer as it was received.
// timeout limits the time for both, including connecting.
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
	// A Read does not know ctx, but fails when the connection is closed.
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

// causeOr returns ctx's cause if ctx has ended, and err otherwise. A timeout closes the connection, and
// the cause then says more than the error of the closed connection.
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
	buf := make([]byte, 1<<16) // some servers send more than the requested size
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, false, err
		}
		// Anything else does not answer q: the wait continues until the timeout closes conn.
		if ok, truncated := q.answeredBy(buf[:n]); ok {
			return buf[:n], truncated, nil
		}
	}
}

// overTCP sends q over conn and returns the answer. On TCP, each message is preceded by its
// length (RFC 1035, section 4.2.2).
func overTCP(conn net.Conn, q query) (msg []byte, truncated bool, err error) {
	// The length and the message in one Write, because some servers expect both in one segment.
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

// query is one question with its message's id.
type query struct {
	id       uint16
	question dnsmessage.Question
	packed   []byte // the message to send
}

// newQuery returns a query for records of name. The name must be complete: no search domain is
// added. size is the largest answer over UDP for EDNS0; 0 means a query without EDNS0. The id is
// random, because that makes it difficult to forge an answer.
func newQuery(name string, kind dnsmessage.Type, size int) (query, error) {
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
		// A stub resolver asks its server to do the whole work.
		Header:    dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q.question},
	}
	if size > 0 {
		// The OPT record offers EDNS0: it tells the server the largest answer that may come over UDP.
		var opt dnsmessage.ResourceHeader
		if err := opt.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err != nil {
			return query{}, fmt.Errorf("name %q: %w", name, err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
	}
	if q.packed, err = m.Pack(); err != nil {
		return query{}, fmt.Errorf("name %q: %w", name, err)
	}
	return q, nil
}

// answeredBy reports whether msg answers q, and whether the answer is truncated. msg answers q if it
// carries q's id and question. This keeps out late answers to other questions, and forged ones. A
// message that reports an error may lack the question.
func (q query) answeredBy(msg []byte) (ok, truncated bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	// An id that differs means a late or forged message.
	if err != nil || !h.Response || h.ID != q.id {
		return false, false
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		// A server that cannot parse the question reports that without repeating it.
		return err == nil && len(questions) == 0 && h.RCode != dnsmessage.RCodeSuccess, false
	}
	question := questions[0]
	matches := question.Type == q.question.Type && question.Class == q.question.Class && fold(question.Name) == fold(q.question.Name)
	return matches, h.Truncated
}

// fold returns n in lower case, because case does not matter in DNS names, and some servers change it.
func fold(n dnsmessage.Name) string { return strings.ToLower(n.String()) }
