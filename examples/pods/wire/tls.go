package wire

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// A TLS record begins with its type, two bytes of version, and two of its length. recordFirst and recordLast are
// the lowest and the highest type. maxRecord is the longest record, which is encrypted.
const (
	recordHead      = 5
	recordAlert     = 21
	recordHandshake = 22
	recordFirst     = 20 // change_cipher_spec, alert, handshake, application_data
	recordLast      = 23
	maxRecord       = 1<<14 + 256
)

// TLS reports whether f consists of TLS records. The first record must be a handshake or an
// alert. The last record may be incomplete. If f is empty, TLS returns false.
func (f Flow) TLS() bool {
	rest := f.Data
	if len(rest) < recordHead || rest[0] != recordHandshake && rest[0] != recordAlert {
		return false
	}
	for len(rest) >= recordHead {
		size := int(binary.BigEndian.Uint16(rest[3:]))
		// The version is 3.0 (SSL 3.0) to 3.4 (TLS 1.3).
		if rest[0] < recordFirst || rest[0] > recordLast || rest[1] != 3 || rest[2] > 4 || size > maxRecord {
			return false
		}
		// The last record may be incomplete.
		rest = rest[min(recordHead+size, len(rest)):]
	}
	return true
}

// ServerName returns the server name in f's ClientHello, or "" if there is no ClientHello or no
// server name in it.
func (f Flow) ServerName() (name string) {
	// The callback gets the ClientHello, and its error ends the handshake.
	enough := errors.New("only the client hello is parsed")
	// The handshake's error does not matter. Without a ClientHello, name stays empty.
	_ = tls.Server(hello{r: bytes.NewReader(f.Data)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, enough
		},
	}).Handshake() //nolint:noctx // it reads from memory
	return name
}

// hello is a connection from which a TLS server reads the recorded bytes of a client. The
// server parses the ClientHello for [Flow.ServerName]. hello discards the bytes that the
// server writes.
type hello struct {
	net.Conn

	r io.Reader
}

// Read returns the recorded bytes.
func (h hello) Read(p []byte) (int, error) { return h.r.Read(p) }

// Write discards p, an alert of the TLS server, which has nobody to send it to.
func (h hello) Write(p []byte) (int, error) { return len(p), nil }
