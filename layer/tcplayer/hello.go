package tcplayer

import (
	"errors"
	"io"
)

// ClientHello is what a client says first when it speaks TLS, as far as it is
// needed to decide who serves it (RFC 8446, 4.1.2).
type ClientHello struct {
	ServerName string   // the name that it asks for (SNI), or ""
	Protocols  []string // those that it offers (ALPN), in its order
}

// ErrNotTLS says of first bytes that they do not begin a TLS connection.
var ErrNotTLS = errors.New("not TLS")

// ParseClientHello reads the message from the first bytes of a client, over as
// many records as it is in. The error is [io.ErrUnexpectedEOF] if more is
// needed to tell, and [ErrNotTLS] for anything that is no ClientHello, or is one
// that crypto/tls would not read either. It does not keep first.
func ParseClientHello(first []byte) (ClientHello, error) {
	message, err := firstMessage(first)
	if err != nil {
		return ClientHello{}, err
	}
	m := octets{rest: message}
	m.take(2 + 32) // version, random
	m.vector(1)    // session
	suites := m.vector(2)
	m.vector(1) // compression
	if m.short || len(suites)%2 != 0 {
		return ClientHello{}, ErrNotTLS
	}
	var hello ClientHello
	if len(m.rest) == 0 { // as before there were extensions
		return hello, nil
	}
	extensions := octets{rest: m.vector(2)}
	if m.short || len(m.rest) > 0 || !hello.extend(extensions) {
		return ClientHello{}, ErrNotTLS
	}
	return hello, nil
}

const (
	handshakeRecord = 22
	clientHello     = 1
	maxRecord       = 1 << 14 // RFC 8446, 5.1
	maxMessage      = 1 << 16 // as in crypto/tls
)

// firstMessage returns the body of the first handshake message.
func firstMessage(b []byte) ([]byte, error) {
	var message []byte
	for joined := false; ; joined = true {
		n, err := recordSize(b)
		if err != nil {
			return nil, err
		}
		b = b[5:]
		there := min(n, len(b))
		if joined {
			message = append(message, b[:there]...)
		} else {
			message = b[:there:there]
		}
		whole, err := wholeMessage(message)
		if err == nil || errors.Is(err, ErrNotTLS) {
			return whole, err
		}
		if there < n {
			return nil, io.ErrUnexpectedEOF
		}
		b = b[n:]
	}
}

// recordSize reads the five bytes before a fragment of a handshake.
func recordSize(b []byte) (int, error) {
	switch {
	case len(b) > 0 && b[0] != handshakeRecord, len(b) > 1 && b[1] != 3:
		return 0, ErrNotTLS
	case len(b) < 5:
		return 0, io.ErrUnexpectedEOF
	}
	n := int(b[3])<<8 | int(b[4])
	if n == 0 || n > maxRecord {
		return 0, ErrNotTLS
	}
	return n, nil
}

// wholeMessage returns the body of a ClientHello whose beginning m is.
func wholeMessage(m []byte) ([]byte, error) {
	switch {
	case len(m) > 0 && m[0] != clientHello:
		return nil, ErrNotTLS
	case len(m) < 4:
		return nil, io.ErrUnexpectedEOF
	}
	n := int(m[1])<<16 | int(m[2])<<8 | int(m[3])
	switch {
	case n > maxMessage:
		return nil, ErrNotTLS
	case len(m) < 4+n:
		return nil, io.ErrUnexpectedEOF
	}
	return m[4 : 4+n], nil
}

const (
	serverNameExtension = 0
	alpnExtension       = 16
)

// extend takes over what is of interest, and reports whether all is in order.
func (h *ClientHello) extend(all octets) bool {
	named, offered := false, false
	for len(all.rest) > 0 {
		kind, data := all.number(2), octets{rest: all.vector(2)}
		if all.short {
			return false
		}
		switch kind {
		case serverNameExtension:
			if named || !h.name(data) {
				return false
			}
			named = true
		case alpnExtension:
			if offered || !h.offer(data) {
				return false
			}
			offered = true
		}
	}
	return true
}

// name reads a list of names, of which one at most is that of a host (RFC 6066,
// 3). It does not end with a dot.
func (h *ClientHello) name(data octets) bool {
	list := octets{rest: data.vector(2)}
	if data.short || len(data.rest) > 0 || len(list.rest) == 0 {
		return false
	}
	for len(list.rest) > 0 {
		kind, name := list.number(1), list.vector(2)
		switch {
		case list.short || len(name) == 0:
			return false
		case kind != 0:
			continue
		case h.ServerName != "" || name[len(name)-1] == '.':
			return false
		}
		h.ServerName = string(name)
	}
	return true
}

// offer reads a list of protocols (RFC 7301, 3.1).
func (h *ClientHello) offer(data octets) bool {
	list := octets{rest: data.vector(2)}
	if data.short || len(data.rest) > 0 || len(list.rest) == 0 {
		return false
	}
	for len(list.rest) > 0 {
		name := list.vector(1)
		if list.short || len(name) == 0 {
			return false
		}
		h.Protocols = append(h.Protocols, string(name))
	}
	return true
}

// octets is what is left to be read. Where it is too short for what was asked,
// it says so, and is empty.
type octets struct {
	rest  []byte
	short bool
}

func (o *octets) take(n int) []byte {
	if n > len(o.rest) {
		o.rest, o.short = nil, true
		return nil
	}
	taken := o.rest[:n]
	o.rest = o.rest[n:]
	return taken
}

// number takes a number of that many octets.
func (o *octets) number(width int) int {
	n := 0
	for _, b := range o.take(width) {
		n = n<<8 | int(b)
	}
	return n
}

// vector takes as many octets as a number of that width says.
func (o *octets) vector(width int) []byte { return o.take(o.number(width)) }
