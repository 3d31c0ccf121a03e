package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dialFunc has the form of net.Dialer.DialContext. The network is "udp", where
// one Write is one message and so is one Read, or "tcp".
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// client asks servers.
type client struct {
	dial  dialFunc
	first atomic.Uint32 // the server to begin with: one that failed is left for the next
}

// ask puts a question to one server after the other until one answers. An error
// is that of the last one.
func (c *client) ask(ctx context.Context, conf config, name string, kind dnsmessage.Type) (answer, error) {
	var last error
	first, n := c.first.Load(), uint32(len(conf.servers))
	for i := range uint32(conf.attempts) * n {
		server := conf.servers[(first+i)%n]
		a, err := c.attempt(ctx, conf.timeout, server, name, kind)
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

func kindName(kind dnsmessage.Type) string {
	switch kind {
	case dnsmessage.TypeA:
		return "A"
	case dnsmessage.TypeAAAA:
		return "AAAA"
	case dnsmessage.TypeSRV:
		return "SRV"
	default:
		return kind.String()
	}
}

// mostAliases is how many answers of one server may leave out the end of an alias.
const mostAliases = 8

// attempt asks one server. Where it leaves out what an alias leads to, which is
// neither that there is nothing nor that there is no such name, it is asked for
// that too.
func (c *client) attempt(
	ctx context.Context, timeout time.Duration, server netip.AddrPort, name string, kind dnsmessage.Type,
) (answer, error) {
	ttl := longest
	for n := range mostAliases {
		a, err := c.question(ctx, timeout, server, name, kind)
		switch {
		case err != nil && n > 0:
			return answer{}, fmt.Errorf("its alias %s: %w", name, err)
		case err != nil:
			return answer{}, err
		}
		a.ttl = min(a.ttl, ttl)
		if a.alias == "" {
			return a, nil
		}
		name, ttl = a.alias, a.ttl
	}
	return answer{}, fmt.Errorf("more than %d answers are aliases", mostAliases)
}

// question asks one server with EDNS0, and one that does not know that, without.
func (c *client) question(
	ctx context.Context, timeout time.Duration, server netip.AddrPort, name string, kind dnsmessage.Type,
) (answer, error) {
	a, err := c.message(ctx, timeout, server, name, kind, true)
	if said, ok := errors.AsType[refusal](err); ok && !said.edns && unknown(said.rcode) {
		return c.message(ctx, timeout, server, name, kind, false)
	}
	return a, err
}

// message sends one. Each has an id and a port of its own.
func (c *client) message(
	ctx context.Context, timeout time.Duration, server netip.AddrPort, name string, kind dnsmessage.Type, edns bool,
) (answer, error) {
	q, err := newQuery(name, kind, edns)
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

// exchange sends q and waits for the answer to it. It holds nothing when it
// returns.
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

// causeOr prefers why ctx ended to what that did to a connection.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// overUDP passes over whatever is not the answer to q: late answers, and those
// of somebody who guesses.
func overUDP(conn net.Conn, q query) (msg []byte, truncated bool, err error) {
	if _, err := conn.Write(q.packed); err != nil {
		return nil, false, err
	}
	buf := make([]byte, 4096) // servers that do not mind what was asked for
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

// overTCP has messages with their length before them: RFC 1035, section 4.2.2.
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
		return nil, false, errors.New("what came over tcp is not the answer to the question")
	}
	return msg, truncated, nil
}
