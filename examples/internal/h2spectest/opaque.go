package h2spectest

import (
	"context"
	"net"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Opaque closes connections that are not HTTP, or begin with an invalid HTTP/2 preface. It does
// not respond in HTTP/1.1, which such a client could not read. It reads the first bytes before it
// closes, because closing with unread input resets the connection.
type Opaque struct{}

// Ready implements [tcplayer.Server].
func (Opaque) Ready(context.Context) error { return nil }

// Call implements [tcplayer.Server].
func (Opaque) Call(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	_, _ = conn.Read(make([]byte, 1<<10))
	return tcplayer.ByteCount{}, conn.Close()
}
