package tcplayer

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
)

// underTLS is what TLS of this package is made on. It notes the end of what is
// below, which to crypto/tls is as good as one that the peer says (close_notify),
// though anybody on the way can make it, and a peer that is killed does.
type underTLS struct {
	net.Conn
	ended atomic.Bool
}

func (u *underTLS) Read(p []byte) (int, error) {
	n, err := u.Conn.Read(p)
	// What comes with the end may be what says so. TLS that was told so reads no
	// more, and else comes again.
	if n == 0 && errors.Is(err, io.EOF) {
		u.ended.Store(true)
	}
	return n, err
}

// NetConn returns the connection below.
func (u *underTLS) NetConn() net.Conn { return u.Conn }

// endOf returns what the end was that was read from conn: nil if it was in good
// order, io.ErrUnexpectedEOF if TLS was cut short.
func endOf(conn net.Conn) error {
	for ; conn != nil; conn = below(conn) {
		if u, ok := conn.(*underTLS); ok && u.ended.Load() {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
