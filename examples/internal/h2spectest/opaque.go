package h2spectest

import (
	"context"
	"net"

	"github.com/gotower/gotower/layer/tcplayer"
)

// Opaque closes connections of other protocols, also one with an invalid preface of HTTP/2, without a
// response in HTTP/1.1 that its client cannot read. It reads the first bytes, because a close with
// unread input is a reset.
type Opaque struct{}

// Ready is part of [tcplayer.Server].
func (Opaque) Ready(context.Context) error { return nil }

// Call is part of [tcplayer.Server].
func (Opaque) Call(_ context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	_, _ = conn.Read(make([]byte, 1<<10))
	return tcplayer.ByteCount{}, conn.Close()
}
