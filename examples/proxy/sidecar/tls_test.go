package sidecar

import (
	"crypto/tls"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A client that goes silent holds a goroutine for a while, and not for ever:
// before its first byte, in the middle of TLS, and behind its first byte.
func TestSilentClientsAreGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		sent   string
		within time.Duration
	}{
		"nothing":           {"", detectWithin},
		"a record begins":   {"\x16\x03\x01", handshakeWithin},
		"HTTP/2 in clear":   {"P", handshakeWithin},
		"half of a preface": {"PRI * HTTP/2.0\r\n", handshakeWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				go func() { _, _ = client.Write([]byte(tt.sent)) }()
				began := time.Now()
				conn, _, err := newOptionalTLS(&tls.Config{}).ServerHandshake(server)
				for err == nil { // as gRPC reads on
					_, err = conn.Read(make([]byte, 64))
				}
				if name != "a record begins" {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				require.Equal(t, tt.within, time.Since(began))
				server.Close()
			})
		})
	}
}
