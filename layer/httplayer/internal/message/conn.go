package message

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// CloseWrite closes the sending half of conn. It returns [http.ErrNotSupported] if conn has
// no CloseWrite method.
func CloseWrite(conn any) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// LingerTime is the longest time for which [Linger] waits for the peer to read the last
// output.
const LingerTime = 500 * time.Millisecond

// Linger closes the sending half of conn. It then drops received bytes until the peer closes the
// connection, as many bytes as limit have arrived, or LingerTime has passed. The caller then closes
// conn. Without Linger, closing conn with unread input would send a reset, and the peer could lose
// the last output.
func Linger(conn net.Conn, limit int64) {
	if CloseWrite(conn) == nil {
		_ = conn.SetReadDeadline(time.Now().Add(LingerTime))
		_, _ = io.CopyN(io.Discard, conn, limit)
	}
}

// AheadConn is a connection. Its Read returns the bytes of Ahead before those of Conn. One
// goroutine at a time calls Read.
type AheadConn struct {
	net.Conn
	Ahead []byte
}

// Read returns bytes of Ahead, as long as there are any. After that it reads from Conn.
func (c *AheadConn) Read(p []byte) (int, error) {
	if len(c.Ahead) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.Ahead)
	if c.Ahead = c.Ahead[n:]; len(c.Ahead) == 0 {
		c.Ahead = nil // releases the memory
	}
	return n, nil
}

// CloseWrite closes the sending half of the connection. It returns an error if the
// connection cannot do this.
func (c *AheadConn) CloseWrite() error { return CloseWrite(c.Conn) }

// NetConn returns the underlying connection.
func (c *AheadConn) NetConn() net.Conn { return c.Conn }

// Copy copies src to dst until io.EOF and returns the number of copied bytes. If the function flush
// is not nil, Copy calls it before each Read that may wait. Unlike [io.Copy] it uses a pooled
// buffer, and only the methods Read and Write. The buffer has 32 KiB after a Read that filled a
// smaller one, and 2 KiB after a small Read, because an idle tunnel keeps it.
func Copy(dst io.Writer, src io.Reader, flush func()) (total int64, err error) {
	const small, large = 2 << 10, 32 << 10
	b := GetBuffer(small)
	defer func() { b.Release() }()
	for {
		space := b.B[:cap(b.B)]
		if flush != nil {
			if n, eof := Pending(src); n == 0 && !eof {
				flush()
			}
		}
		n, err := src.Read(space)
		if n > 0 {
			if _, err := dst.Write(space[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		size := len(space)
		switch {
		case n == size:
			size = large
		case n < small:
			size = small
		}
		if size != len(space) {
			b.Release()
			b = GetBuffer(size)
		}
	}
}

// Tunnel copies bytes between client and upstream in both directions. When one direction ends,
// Tunnel closes the sending half of the connection to which it copied the bytes. When both have
// ended, it closes upstream. If one direction fails or ctx ends, Tunnel closes client and upstream.
// It returns after both directions have ended.
func Tunnel(ctx context.Context, client, upstream io.ReadWriteCloser) error {
	cut := func() {
		_ = panics.Contain(func() { _ = client.Close() })
		_ = panics.Contain(func() { _ = upstream.Close() })
	}
	defer context.AfterFunc(ctx, cut)()
	defer upstream.Close()
	carry := func(to io.Writer, from io.Reader) error {
		err := panics.Do("tunnel", func() error {
			if _, err := Copy(to, from, nil); err != nil {
				return err
			}
			return CloseWrite(to)
		})
		if err != nil {
			cut()
		}
		return err
	}
	up := make(chan error, 1)
	go func() { up <- carry(upstream, client) }()
	return errors.Join(carry(client, upstream), <-up)
}

// Pending returns the number of bytes that can be read from body without waiting. If eof is
// true, the body ends after these bytes. If body has no method Pending, n is 0, and eof is
// true only for nil and for the empty body of package http.
func Pending(body io.Reader) (n int, eof bool) {
	if p, ok := body.(interface{ Pending() (n int, eof bool) }); ok {
		return p.Pending()
	}
	return 0, body == nil || body == http.NoBody
}
