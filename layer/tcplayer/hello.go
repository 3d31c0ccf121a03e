package tcplayer

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
)

var (
	// errNotTLS reports first bytes that crypto/tls rejects.
	errNotTLS = errors.New("not TLS")

	errHelloRead = errors.New("the ClientHello was read")
)

const (
	handshakeRecord = 22 // first byte of a record (RFC 8446, section 5.1)
	clientHello     = 1  // first byte of a handshake message (section 4)
)

// parseServerName returns the server name (SNI) of the ClientHello in the first
// bytes of a client, "" if it has none. crypto/tls reads the message. The error
// is io.ErrUnexpectedEOF if more bytes are needed, and errNotTLS otherwise.
func parseServerName(first []byte) (name string, err error) {
	for i, want := range [...]byte{0: handshakeRecord, 1: 3, 5: clientHello} {
		if want != 0 && i < len(first) && first[i] != want {
			return "", errNotTLS
		}
	}
	conn := &helloConn{rest: *bytes.NewReader(first)}
	err = tls.Server(conn, &tls.Config{ //nolint:gosec // the handshake ends before a version is chosen
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHelloRead
		},
	}).Handshake()
	switch {
	case errors.Is(err, errHelloRead):
		return name, nil
	case conn.short:
		return "", io.ErrUnexpectedEOF
	}
	return "", errNotTLS
}

// helloConn is the connection of parseServerName. Its other methods are not
// called.
type helloConn struct {
	net.Conn
	rest  bytes.Reader
	short bool // more bytes were read than rest had
}

func (c *helloConn) Read(p []byte) (int, error) {
	n, err := c.rest.Read(p)
	c.short = err != nil
	return n, err
}

func (c *helloConn) Write(p []byte) (int, error) { return len(p), nil }
