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

// CloseWrite closes the sending half of conn. It returns [http.ErrNotSupported] if conn does not
// support CloseWrite.
func CloseWrite(conn any) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

const (
	// LingerTime is the longest time for which [Linger] waits for bytes of the peer, or for its end.
	LingerTime = 500 * time.Millisecond
	// UploadTime is the longest time for which Linger should wait for the end of an upload. It is that of
	// lingering_time of nginx.
	UploadTime = 30 * time.Second
)

// Linger closes the sending half of conn. It then drops received bytes until the peer closes the
// connection or pauses for LingerTime, until as many bytes as limit have arrived, or until the time longest
// has passed. The caller then closes conn. Without Linger, closing conn with unread input would send a
// reset, and the peer could lose the last output. Many clients read a response only after they have sent
// their whole request: see UploadTime.
func Linger(conn net.Conn, longest time.Duration, limit int64) {
	if CloseWrite(conn) != nil {
		return
	}
	b := GetBuffer(8 << 10)
	defer b.Release()
	for end := time.Now().Add(longest); limit > 0; {
		_ = conn.SetReadDeadline(time.Now().Add(min(LingerTime, time.Until(end))))
		n, err := conn.Read(b.B[:cap(b.B)])
		if err != nil {
			return
		}
		limit -= int64(n)
	}
}

// AheadConn is a connection whose Read returns Ahead's bytes before Conn's. One goroutine at a
// time calls Read.
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

// Copy copies src to dst until io.EOF and returns the number of copied bytes. If flush is not nil, Copy
// calls it before each Read that may wait. Unlike [io.Copy] it uses a pooled buffer, and only Read and
// Write. The buffer has 2 KiB at first, because an idle tunnel keeps it. A Read that fills the buffer
// enlarges it to 32 KiB, and a Read of less than 2 KiB makes it small again.
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
		// A full buffer suggests that more is waiting, and a few bytes that the stream has become slow. In between, the
		// size stays, so that a stream with Reads of varying length does not change it all the time.
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

// Tunnel copies bytes between client and upstream in both directions, and returns after both have
// ended. When one direction ends with io.EOF, Tunnel passes that on by closing the sending half of the
// other connection. If a direction fails or ctx ends, Tunnel closes both connections. It always closes
// upstream in the end, but leaves client open if nothing has failed.
func Tunnel(ctx context.Context, client, upstream io.ReadWriteCloser) error {
	// Closing both connections ends the copying in both directions.
	cut := func() {
		_ = panics.Contain(func() { _ = client.Close() })
		_ = panics.Contain(func() { _ = upstream.Close() })
	}
	defer context.AfterFunc(ctx, cut)()
	defer upstream.Close()
	// carry copies one direction. Its normal end only ends that direction; an error ends both, by cut.
	carry := func(dst io.Writer, src io.Reader) error {
		err := panics.Do("tunnel", func() error {
			if _, err := Copy(dst, src, nil); err != nil {
				return err
			}
			return CloseWrite(dst)
		})
		if err != nil {
			cut()
		}
		return err
	}
	upErr := make(chan error, 1)
	go func() { upErr <- carry(upstream, client) }()
	return errors.Join(carry(client, upstream), <-upErr)
}

// Pending returns the number of bytes that can be read from body without waiting. If eof is true,
// the body ends after these bytes. If body does not implement Pending, n is 0, and eof is true
// only for nil and for http's empty body.
func Pending(body io.Reader) (n int, eof bool) {
	if p, ok := body.(interface{ Pending() (n int, eof bool) }); ok {
		return p.Pending()
	}
	return 0, body == nil || body == http.NoBody
}
